"""Training on several processes, as it is done: each case takes a `Context` and returns figures."""

from __future__ import annotations

import statistics
import time
from typing import Any

import flashoptim_cpp as flash
import torch
import torch.distributed.checkpoint as dcp
from context import Context, assert_same, digest_of, named, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor

Figures = dict[str, Any]


def _beside_a_twin(
    context: Context, model: nn.Module, plain: nn.Module, twin: nn.Module, rule: str
) -> Figures:
    """Trains a model, and a twin on one device with the gradients that the model's ranks share."""
    optimizer, other = context.optimizer(plain, rule), context.optimizer(twin, rule)
    for step in range(context.steps):
        context.backward(model, step)
        for param, copy in zip(plain.parameters(), twin.parameters(), strict=True):
            copy.grad = whole(param.grad).to(copy.device, copy=True)
        optimizer.step()
        other.step()
    found = named(plain, optimizer)
    assert_same(found, named(twin, other), "beside its twin on one device")
    context.agree(found.values(), "weights and states")
    return {"steps": context.steps, "tensors_compared": len(found)}


def _ddp(context: Context, model: nn.Module) -> nn.Module:
    devices = [context.device] if context.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=devices)


def ddp_equals_one_device_adamw(context: Context) -> Figures:
    model = context.gpt()
    return _beside_a_twin(context, _ddp(context, model), model, context.gpt(), "adamw")


def ddp_equals_one_device_lion(context: Context) -> Figures:
    model = context.gpt()
    return _beside_a_twin(context, _ddp(context, model), model, context.gpt(), "lion")


def fsdp_equals_one_device_adamw(context: Context) -> Figures:
    model = context.sharded()
    return _beside_a_twin(context, model, model, context.gpt(), "adamw")


def fsdp_equals_one_device_lion(context: Context) -> Figures:
    model = context.sharded()
    return _beside_a_twin(context, model, model, context.gpt(), "lion")


def cpu_offload_equals_the_gpu(context: Context) -> Figures:
    policy = CPUOffloadPolicy(pin_memory=context.device.type == "cuda")
    model = context.sharded(offload_policy=policy)
    optimizer = context.optimizer(model, "adamw")
    twin = context.gpt()
    other = context.optimizer(twin, "adamw")
    for step in range(3):
        context.backward(model, step)
        for param, copy in zip(model.parameters(), twin.parameters(), strict=True):
            assert param.grad.device.type == "cpu"
            copy.grad = whole(_on(param.grad, context.device)).clone()
        optimizer.step()
        other.step()
    found = {
        name: whole(_on(value, context.device)).cpu() for name, value in model.named_parameters()
    }
    wanted = {name: value.detach().cpu() for name, value in twin.named_parameters()}
    assert_same(found, wanted, "shards on the host beside a whole model on the device")
    return {"steps": 3}


def _on(tensor: Any, device: torch.device) -> Any:
    """A DTensor of the host, so that it can be gathered over NCCL."""
    return DTensor.from_local(
        tensor.detach().to_local().to(device),
        tensor.device_mesh,
        tensor.placements,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _trained(context: Context, make: Any, *, release: bool) -> str:
    """A digest of weights and states after training with or without gradient release."""
    model = make()
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    optimizer = context.optimizer(plain, "adamw")
    handle = flash.enable_gradient_release(model, optimizer) if release else None
    for step in range(context.steps):
        context.loss(model, step).backward()
        if handle is not None:
            assert all(param.grad is None for param in plain.parameters())
        optimizer.step()
        optimizer.zero_grad()
    if handle is not None:
        handle.remove()
    return digest_of(named(plain, optimizer).values())


def release_under_ddp(context: Context) -> Figures:
    plain, released = (
        _trained(context, lambda: _ddp(context, context.gpt()), release=release)
        for release in (False, True)
    )
    assert plain == released
    return {"steps": context.steps}


def release_under_fsdp(context: Context) -> Figures:
    plain, released = (
        _trained(context, context.sharded, release=release) for release in (False, True)
    )
    assert plain == released
    return {"steps": context.steps}


def checkpoint_from_two_to_one_and_back(context: Context) -> Figures:
    model = context.sharded()
    optimizer = context.optimizer(model, "adamw")
    for step in range(5):
        context.backward(model, step)
        optimizer.step()
    wanted = named(model, optimizer)
    begin = time.perf_counter()
    dcp.save(_states(model, optimizer), checkpoint_id=context.directory / "two")
    seconds = time.perf_counter() - begin

    if context.rank == 0:  # one process, a whole model
        single = context.gpt()
        other = context.optimizer(single, "adamw")
        _load(single, other, context.directory / "two", no_dist=True)
        assert_same(named(single, other), wanted, "loaded by one process")
        dcp.save(_states(single, other), checkpoint_id=context.directory / "one", no_dist=True)
    torch.distributed.barrier()

    again = context.sharded()
    last = context.optimizer(again, "adamw")
    _load(again, last, context.directory / "one")
    assert_same(named(again, last), wanted, "loaded by two processes again")
    for m, o in ((model, optimizer), (again, last)):
        context.backward(m, 5)
        o.step()
    assert_same(named(again, last), named(model, optimizer), "a step after loading")
    files = (context.directory / "two").rglob("*")
    parameters = sum(param.numel() for param in model.parameters())
    size = sum(file.stat().st_size for file in files if file.is_file())
    return {"bytes_per_parameter": size / parameters, "save_seconds": seconds}


def _states(model: nn.Module, optimizer: flash.FlashOptimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }


def _load(model: nn.Module, optimizer: flash.FlashOptimizer, path: Any, **options: Any) -> None:
    states = _states(model, optimizer)
    dcp.load(states, checkpoint_id=path, **options)
    set_model_state_dict(model, states["model"])
    set_optimizer_state_dict(model, optimizer, optim_state_dict=states["optimizer"])


def an_infinity_on_one_rank(context: Context) -> Figures:
    model = context.sharded(torch.float16)  # GradScaler knows no bf16 gradients on a GPU
    optimizer = context.optimizer(model, "adamw")
    scaler = torch.amp.GradScaler(context.device.type, init_scale=1024.0)
    for step in range(3):
        for param in model.parameters():
            param.grad = None
        scaler.scale(context.loss(model, step)).backward()
        before = named(model, optimizer)
        if step == 1 and context.rank == context.world - 1:
            next(model.parameters()).grad.to_local().view(-1)[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        if step == 1:
            assert_same(named(model, optimizer), before, "a step that an infinity skips")
        else:
            assert digest_of(named(model, optimizer).values()) != digest_of(before.values())
    assert scaler.get_scale() == 512.0
    return {}


def memory_of_a_rank(context: Context) -> Figures:
    model = context.sharded()
    optimizer = context.optimizer(model, "adamw")
    context.backward(model, 0)
    on_gpu = context.device.type == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    optimizer.step()
    after = torch.cuda.memory_allocated() if on_gpu else 0
    formula = 0
    for param in model.parameters():
        local = param.to_local()
        if local.dim() < 2:
            formula += local.numel() * (1 + 4 + 4)
            continue
        rows, row = local.shape[0], local[0].numel() if local.shape[0] else 0
        formula += local.numel() * (1 + 1 + 1) + 2 * 4 * rows * -(-row // 64)
    held = sum(
        value.to_local().nbytes if isinstance(value, DTensor) else value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if name not in ("step", "stream_key")
    )
    assert held == formula, f"{held} bytes of state, {formula} by the formula"
    parameters = sum(param.to_local().numel() for param in model.parameters())
    return {
        "parameters": parameters,
        "state_bytes_per_parameter": held / parameters,
        "allocated_bytes_per_parameter": (after - before) / parameters,
    }


def step_time_of_a_rank(context: Context) -> Figures:
    figures = {}
    for name, dtype, make in (
        ("ours", torch.bfloat16, lambda p: flash.FlashAdamW(p, lr=3e-4)),
        ("torch_fused_fp32", torch.float32, lambda p: torch.optim.AdamW(p, lr=3e-4, fused=True)),
        ("torch_fused_bf16", torch.bfloat16, lambda p: torch.optim.AdamW(p, lr=3e-4, fused=True)),
    ):
        model = context.sharded(dtype)
        optimizer = make(model.parameters())
        context.backward(model, 0)
        figures[f"{name}_ms"] = _median_ms(context, optimizer)
        del model, optimizer
    return figures


def _median_ms(context: Context, optimizer: torch.optim.Optimizer) -> float:
    for _ in range(3):
        optimizer.step()
    samples = []
    for _ in range(20):
        _wait(context)
        begin = time.perf_counter()
        for _ in range(5):
            optimizer.step()
        _wait(context)
        samples.append((time.perf_counter() - begin) / 5)
    return 1e3 * statistics.median(samples)


def _wait(context: Context) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize()


CASES = (
    ddp_equals_one_device_adamw,
    ddp_equals_one_device_lion,
    fsdp_equals_one_device_adamw,
    fsdp_equals_one_device_lion,
    release_under_ddp,
    release_under_fsdp,
    checkpoint_from_two_to_one_and_back,
    an_infinity_on_one_rank,
    cpu_offload_equals_the_gpu,
    memory_of_a_rank,
    step_time_of_a_rank,
)
