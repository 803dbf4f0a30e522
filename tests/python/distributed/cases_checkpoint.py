"""State dicts of sharded optimizers, and PyTorch's distributed checkpoints of them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import RULES, same_bits
from ranks import case
from sharded import (
    Network,
    assert_same,
    everything,
    local,
    set_gradients,
    shard,
    tensors,
    train,
    whole,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

UNEVEN = ((5, 64), (1, 64), (7, 100), (6, 3), (9,))
DTYPES = (torch.bfloat16, torch.float32)
STEPS = range(1, 5)
MORE_STEPS = range(5, 8)
FULL = StateDictOptions(full_state_dict=True)


def pair(rule: str = "adamw", **options: Any) -> tuple[nn.Module, flash.FlashOptimizer]:
    """A sharded model and its optimizer."""
    model = shard(tensors(UNEVEN, DTYPES))
    make, others = RULES[rule]
    return model, make(model.parameters(), lr=1e-2, **{**others, **options})


def unsharded(rule: str = "adamw", **options: Any) -> tuple[nn.Module, flash.FlashOptimizer]:
    """The same on one process alone."""
    model = tensors(UNEVEN, DTYPES)
    make, others = RULES[rule]
    return model, make(model.parameters(), lr=1e-2, **{**others, **options})


def trained(rule: str = "adamw", steps: range = STEPS, **options: Any) -> list[Any]:
    """Weights and states of an unsharded run."""
    model, optimizer = unsharded(rule, **options)
    train(model, optimizer, steps)
    return everything(model, optimizer)


def assert_continues(
    model: nn.Module, optimizer: flash.FlashOptimizer, rule: str = "adamw", **options: Any
) -> None:
    """What was loaded equals an uninterrupted unsharded run, now and some steps later."""
    assert_same(everything(model, optimizer), trained(rule, **options), "loaded")
    train(model, optimizer, MORE_STEPS)
    wanted = trained(rule, range(STEPS.start, MORE_STEPS.stop), **options)
    assert_same(everything(model, optimizer), wanted, "continued")


def save(directory: Path, model: nn.Module, optimizer: flash.FlashOptimizer) -> None:
    """`dcp.save` of model and optimizer."""
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=directory)


def load(
    directory: Path, model: nn.Module, optimizer: flash.FlashOptimizer, **options: Any
) -> None:
    """`dcp.load` of model and optimizer."""
    settings = StateDictOptions(**options)
    weights, state = get_state_dict(model, optimizer, options=settings)
    found = {"model": weights, "optimizer": state}
    dcp.load(found, checkpoint_id=directory)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=found["model"],
        optim_state_dict=found["optimizer"],
        options=settings,
    )


# Resharding: `test_distributed.py` runs these by groups of several sizes on one directory.
RESHARDED: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("adamw", {}),
    "adamw-32": ("adamw", {"master_weight_bits": 32}),
    "sgd-momentum": ("sgd-momentum", {}),
    "lion": ("lion", {}),
}


def save_for_others(directory: Path) -> None:
    for name, (rule, options) in RESHARDED.items():
        model, optimizer = pair(rule, **options)
        train(model, optimizer, STEPS)
        save(directory / f"{name} from {dist.get_world_size()}", model, optimizer)


def load_from_others(directory: Path) -> None:
    """B2, B3."""
    found = 0
    for name, (rule, options) in RESHARDED.items():
        for path in sorted((directory.parent / "save_for_others").glob(f"{name} from *")):
            model, optimizer = pair(rule, **options)
            load(path, model, optimizer)
            assert_continues(model, optimizer, rule, **options)
            found += 1
    assert found == 3 * len(RESHARDED)


def load_into_one_process(directory: Path) -> None:
    """B3: Without FSDP, and what it saves is read by FSDP again."""
    for name, (rule, options) in RESHARDED.items():
        model, optimizer = unsharded(rule, **options)
        load(directory.parent / "save_for_others" / f"{name} from 2", model, optimizer)
        path = directory.parent / "save_for_others" / f"{name} from 1"
        save(path, model, optimizer)
        assert_continues(model, optimizer, rule, **options)


@case(1, 2)
def options_of_state_dicts(directory: Path) -> None:
    for options in (
        {},
        {"cpu_offload": True},
        {"flatten_optimizer_state_dict": True},
        {"flatten_optimizer_state_dict": True, "cpu_offload": True},
    ):
        path = directory / "-".join(["options", *options])
        model, optimizer = pair("adamw-amsgrad", master_weight_bits=32)
        train(model, optimizer, STEPS)
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(**options))
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
        model, optimizer = pair("adamw-amsgrad", master_weight_bits=32)
        load(path, model, optimizer, **options)
        group = dict(optimizer.param_groups[0])
        assert_continues(model, optimizer, "adamw-amsgrad", master_weight_bits=32)
        wanted = pair("adamw-amsgrad", master_weight_bits=32)[1].param_groups[0]
        del group["params"], wanted["params"]
        assert {**wanted, "initial_lr": 1e-2} == group, options
        assert type(group["betas"]) is tuple


@case(2, 3)
def full_state_dicts(directory: Path) -> None:
    """B4: at the end of a run. `before_the_first_step` is the other half."""
    for options in ({}, {"master_weight_bits": 32}):
        path = directory / "-".join(["full", *options])
        path.mkdir(exist_ok=True)
        check_full_state_dicts(path, **options)


def check_full_state_dicts(directory: Path, **options: Any) -> None:
    model, optimizer = pair(**options)
    train(model, optimizer, STEPS)
    full = get_optimizer_state_dict(model, optimizer, options=FULL)
    weights = get_model_state_dict(model, options=FULL)
    assert not any(isinstance(v, DTensor) for s in full["state"].values() for v in s.values())

    # Into an unsharded model, through a file that torch.load trusts.
    torch.save(full, directory / f"full-{dist.get_rank()}.pt")
    read = torch.load(directory / f"full-{dist.get_rank()}.pt", weights_only=True)
    twin, reference = unsharded(**options)
    twin.load_state_dict(weights)
    set_optimizer_state_dict(twin, reference, read)
    assert_continues(twin, reference, **options)

    # Back, from every rank's copy and from that of rank 0 alone.
    model, optimizer = pair(**options)
    set_model_state_dict(model, dict(weights), options=FULL)  # which puts shards into it
    set_optimizer_state_dict(model, optimizer, full, options=FULL)
    assert_continues(model, optimizer, **options)
    model, optimizer = pair(**options)
    first = dist.get_rank() == 0
    from_first = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(weights) if first else {}, options=from_first)
    set_optimizer_state_dict(model, optimizer, full if first else {}, options=from_first)
    assert_continues(model, optimizer, **options)
    to_host = StateDictOptions(full_state_dict=True, cpu_offload=True)
    offloaded = get_optimizer_state_dict(model, optimizer, options=to_host)
    assert bool(offloaded) == first


@case(2, 3)
def state_dicts_without_the_helpers(directory: Path) -> None:
    """`load_state_dict` of sharded, whole and differently sharded state."""
    for bits in (24, 32):
        path = directory / str(bits)
        path.mkdir(exist_ok=True)
        check_state_dicts_without_the_helpers(path, master_weight_bits=bits)


def check_state_dicts_without_the_helpers(directory: Path, **options: Any) -> None:
    model, optimizer = pair(**options)
    train(model, optimizer, STEPS)
    weights = get_model_state_dict(model, options=FULL)
    saved = optimizer.state_dict()

    def check(state_dict: dict[str, Any]) -> None:
        other, loaded = pair(**options)
        train(other, loaded, range(8, 9))  # state of its own, which is written over
        set_model_state_dict(other, dict(weights), options=FULL)
        before = [local(v).data_ptr() for s in loaded.state.values() for v in s.values() if v.dim()]
        loaded.load_state_dict(state_dict)
        train(optimizer=loaded, model=other, steps=range(0))
        shared = {local(v).data_ptr() for s in saved["state"].values() for v in s.values()} - {0}
        mine = {local(v).data_ptr() for s in loaded.state.values() for v in s.values()} - {0}
        assert not shared & mine
        after = [local(v).data_ptr() for s in loaded.state.values() for v in s.values() if v.dim()]
        assert sorted(after) == sorted(before)
        assert_continues(other, loaded, **options)

    gathered = {**saved, "state": whole(saved["state"])}
    check(saved)
    check(copy.deepcopy(saved))
    check(gathered)
    # Corrections as they are in the optimizer.
    params = list(model.parameters())
    check({**saved, "state": {i: dict(optimizer.state[p]) for i, p in enumerate(params)}})
    check({**saved, "state": {i: whole(optimizer.state[p]) for i, p in enumerate(params)}})
    torch.save(saved, directory / f"{dist.get_rank()}.pt")
    check(torch.load(directory / f"{dist.get_rank()}.pt", weights_only=True))
    twin, reference = unsharded(**options)
    twin.load_state_dict(weights)
    reference.load_state_dict(saved)  # gathers
    assert_continues(twin, reference, **options)
    plain, decompressed = unsharded(**options, compress_state_dict=False)
    plain.load_state_dict(weights)
    decompressed.load_state_dict(gathered)
    check(decompressed.state_dict())


@case(2)
def copies_and_pickles(_: Path) -> None:
    """B18."""
    model, optimizer = pair()
    train(model, optimizer, STEPS)
    compare_with_a_copy(optimizer, copy.deepcopy(optimizer))
    compare_with_a_copy(optimizer, pickle.loads(pickle.dumps(optimizer)))


def compare_with_a_copy(optimizer: flash.FlashOptimizer, clone: flash.FlashOptimizer) -> None:
    """The same parameters and state in other memory, which take the same step."""
    for group, other in zip(optimizer.param_groups, clone.param_groups, strict=True):
        for param, copied in zip(group["params"], other["params"], strict=True):
            assert param is not copied
            assert same_bits(whole(param.detach()), whole(copied.detach()))
            assert same_bits(whole(optimizer.state[param]), whole(clone.state[copied]))
            set_gradients([copied], 9)
            set_gradients([param], 9)
    optimizer.step()
    clone.step()
    for param, copied in zip(
        optimizer.param_groups[0]["params"], clone.param_groups[0]["params"], strict=True
    ):
        assert same_bits(whole(param.detach()), whole(copied.detach()))


@case(2)
def before_the_first_step(directory: Path) -> None:
    """B4: Making a state dict leaves no trace in weights, moments or step counts."""
    for rule in RULES:  # B4: `full_state_dict` at step 0
        model, optimizer = pair(rule)
        before = [whole(param.detach()) for param in model.parameters()]
        save(directory / rule, model, optimizer)
        full = get_optimizer_state_dict(model, optimizer, options=FULL)
        assert {float(state["step"]) for state in full["state"].values()} == {0.0}
        assert same_bits(before, [whole(param.detach()) for param in model.parameters()])
        train(model, optimizer, STEPS)
        assert_continues(model, optimizer, rule)
        model, optimizer = pair(rule)
        load(directory / rule, model, optimizer)
        train(model, optimizer, STEPS)
        assert_continues(model, optimizer, rule)


@case(2)
def asynchronous_saves(directory: Path) -> None:
    model, optimizer = pair()
    train(model, optimizer, STEPS)
    weights, state = get_state_dict(model, optimizer)
    group = dist.new_group(backend="gloo")
    future = dcp.async_save(
        {"model": weights, "optimizer": state},
        checkpoint_id=directory / "saved",
        process_group=group,
    )
    train(model, optimizer, MORE_STEPS)  # the checkpoint is of before
    future.result()
    model, optimizer = pair()
    load(directory / "saved", model, optimizer)
    assert_continues(model, optimizer)


@case(2)
def a_rank_without_gradients(directory: Path) -> None:
    """B13."""
    for flat in (False, True):
        options = {"flatten_optimizer_state_dict": flat}
        model, optimizer = pair()
        set_gradients(model.parameters(), 1)
        if dist.get_rank() == 1:
            for param in list(model.parameters())[:2]:
                param.grad = None
        optimizer.step()
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(**options))
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=directory / str(flat))
        other, loaded = pair()
        load(directory / str(flat), other, loaded, **options)
        for param, twin in zip(model.parameters(), other.parameters(), strict=True):
            a, b = whole(optimizer.state[param]), whole(loaded.state[twin])
            a.pop("step"), b.pop("step")
            assert same_bits(a, b)


@case(2)
def resumed_training_of_a_network(directory: Path) -> None:
    """B1: Forward and backward passes of FSDP, a frozen layer, and two parameter groups."""

    def make() -> tuple[nn.Module, flash.FlashOptimizer]:
        model = shard(Network())
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return model, flash.FlashAdamW(groups, lr=1e-2, stochastic_rounding=True)

    def run(model: nn.Module, optimizer: flash.FlashOptimizer, steps: range) -> None:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        for step in steps:
            generator = torch.Generator().manual_seed(step + 7 * dist.get_rank())
            model(torch.randint(13, (3, 4), generator=generator)).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()

    straight, stepped = make()
    run(straight, stepped, range(4))
    run(straight, stepped, range(4, 8))
    model, optimizer = make()
    run(model, optimizer, range(4))
    save(directory / "saved", model, optimizer)
    model, optimizer = make()
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)  # has made `initial_lr`
    load(directory / "saved", model, optimizer)
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    run(model, optimizer, range(4, 8))
    assert_same(everything(model, optimizer), everything(straight, stepped), "resumed")
    frozen = [p for p in model.parameters() if not p.requires_grad]
    assert frozen
    assert not any(optimizer.state.get(p) for p in frozen)


@case(2)
def other_forms_of_state_are_refused(directory: Path) -> None:
    """torch copies a checkpoint into whatever the reader has, and would cast codes to floats."""
    model, optimizer = pair()
    train(model, optimizer, STEPS)
    save(directory / "saved", model, optimizer)
    other, reader = pair(quantize=False)
    with pytest.raises(ValueError, match=r"parameter 0 of group 0.*saved with"):
        load(directory / "saved", other, reader)
    # Corrections of 16 bits are bytes in a dimension more: torch sees that before it reads.
    other, reader = pair(master_weight_bits=32)
    with pytest.raises(dcp.api.CheckpointException, match="weight_correction"):
        load(directory / "saved", other, reader)
    # Another codec has the same form, and is converted.
    other, reader = pair(codec="softsign")
    load(directory / "saved", other, reader)
    assert reader.param_groups[0]["codec"] == "softsign"
    train(other, reader, range(5, 6))
    # fp32 moments can be read by every optimizer that asks for them.
    model, optimizer = pair(compress_state_dict=False)
    train(model, optimizer, STEPS)
    save(directory / "decompressed", model, optimizer)
    other, reader = pair(compress_state_dict=False)
    load(directory / "decompressed", other, reader)
    assert_continues(other, reader)
    other, reader = pair(quantize=False)
    load(directory / "decompressed", other, reader)
    train(other, reader, range(5, 6))


@case(1, 2)
def loading_holds_the_state_once(directory: Path) -> None:
    """A checkpoint is read into the optimizer's tensors, and these stay."""

    def addresses(optimizer: flash.FlashOptimizer) -> dict[tuple[int, str], int]:
        return {
            (index, name): local(value).data_ptr()
            for index, state in enumerate(optimizer.state.values())
            for name, value in state.items()
            if name not in ("step", "stream_key")
        }

    model, optimizer = pair()
    train(model, optimizer, STEPS)
    save(directory / "saved", model, optimizer)
    model, optimizer = pair()
    weights, state = get_state_dict(model, optimizer)
    before = addresses(optimizer)
    found = {"model": weights, "optimizer": state}
    dcp.load(found, checkpoint_id=directory / "saved")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=found["optimizer"])
    assert addresses(optimizer) == before
    assert_continues(model, optimizer)


@case(2)
def size_of_a_checkpoint(directory: Path) -> None:
    """Bytes per parameter of weights and state on disk: 5.125 for AdamW with 24 bits."""
    model = shard(tensors([(1024, 1024), (515, 1024)], [torch.bfloat16]))
    optimizer = flash.FlashAdamW(model.parameters())
    train(model, optimizer, range(1, 2))
    save(directory / "saved", model, optimizer)
    dist.barrier()
    size = sum(path.stat().st_size for path in (directory / "saved").glob("*.distcp"))
    numel = sum(param.numel() for param in model.parameters())
    formula = 2 + 1 + 1 + 1 + 2 * 4 / 64
    print(f"{size / numel:.4f} bytes per parameter on disk, {formula} by the formula")
    assert formula * numel <= size < 1.01 * formula * numel
    assert 7e9 * formula <= 36e9
    report = optimizer.memory_report()
    rows = sum(local(param).numel() for param in model.parameters())
    assert report.numel == rows
    assert report.by_kind.weights == 2 * rows
    assert report.by_kind.optimizer - report.by_kind.other == round((formula - 2) * rows)
