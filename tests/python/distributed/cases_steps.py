"""Steps of sharded parameters against the unsharded step, to the last bit."""

from __future__ import annotations

import copy
from pathlib import Path

import flashoptim_cpp as flash
import pytest
import torch
import torch.distributed as dist
from common import RULES, STORAGES, same_bits
from flashoptim_cpp import _plan
from ranks import case
from sharded import (
    LONG_VECTOR,
    Network,
    assert_same,
    distributed,
    everything,
    local,
    set_gradients,
    shard,
    tensors,
    train,
    whole,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


def compare(model: nn.Module, twin: nn.Module, rule: str, storage: str) -> None:
    """Trains a sharded model and its unsharded twin."""
    make, options = RULES[rule]
    optimizers = [
        make(m.parameters(), lr=1e-2, **{**options, **STORAGES[storage]}) for m in (model, twin)
    ]
    for steps in (range(1, 2), range(2, 4)):
        for m, optimizer in zip((model, twin), optimizers, strict=True):
            train(m, optimizer, steps)
        assert_same(*map(everything, (model, twin), optimizers), (rule, storage, steps))


@case(1, 2, 3)
def every_rule_and_storage(_: Path) -> None:
    compare(shard(tensors([LONG_VECTOR])), tensors([LONG_VECTOR]), "adamw", "stochastic-16")
    for rule in RULES:
        for storage in STORAGES if dist.get_world_size() == 2 else ("default", "stochastic-16"):
            compare(shard(tensors()), tensors(), rule, storage)


@case(2, 3)
def a_number_of_rows_below_that_of_ranks(_: Path) -> None:
    """B2."""
    shapes = [(1, 64), (1, 4, 32), (1, 5), (1,), (0, 64)]
    for rule in ("adamw", "lion"):
        compare(shard(tensors(shapes)), tensors(shapes), rule, "default")


@case(2)
def replicas_of_shards(_: Path) -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    compare(shard(tensors(), mesh), tensors(), "adamw", "softsign-32")
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    compare(shard(tensors(), mesh), tensors(), "adamw", "default")


@case(4)
def replicas_of_shards_on_four_ranks(_: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for storage in ("default", "stochastic-16"):
        compare(shard(tensors(), mesh), tensors(), "adamw", storage)


@case(2)
def replicated_parameters(_: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    compare(distributed(tensors(), mesh, [Replicate()]), tensors(), "adamw", "default")


# Rows that 2 or 3 ranks share at multiples of 64, some with a short last group; the last rank may
# have none of a row.
CUT_ROWS = {
    2: ((6, 128), (5, 256), (3, 4, 64), (5, 127), (3, 2, 192), (7, 1, 64)),
    3: ((6, 192), (5, 190), (3, 3, 64), (7, 2, 64)),
}


@case(2, 3)
def columns_cut_between_groups(_: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shapes = CUT_ROWS[dist.get_world_size()]
    for rule in ("adamw", "adamw-amsgrad", "lion", "sgd-momentum"):
        for storage in ("default", "softsign-32", "stochastic-16", "unquantized"):
            compare(distributed(tensors(shapes), mesh, [Shard(1)]), tensors(shapes), rule, storage)


@case(4)
def rows_and_columns_cut(_: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    for storage in ("default", "stochastic-16"):
        model = distributed(tensors(CUT_ROWS[2]), mesh, [Shard(0), Shard(1)])
        compare(model, tensors(CUT_ROWS[2]), "adamw", storage)


@case(2)
def columns_cut_inside_groups_are_refused(_: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for shape, placement in (((4, 96), Shard(1)), ((4, 2, 128), Shard(2)), ((100_000,), Shard(0))):
        model = distributed(tensors([shape]), mesh, [placement])
        with pytest.raises(
            ValueError, match=r"parameter 0 of group 0.*inside groups of 64.*quantize"
        ):
            flash.FlashAdamW(model.parameters())
        in_pieces = placement == Shard(2)  # what a rank has of a row
        for bits in (16, 24):
            model, twin = distributed(tensors([shape]), mesh, [placement]), tensors([shape])
            optimizer, reference = (
                flash.FlashAdamW(
                    net.parameters(),
                    quantize=False,
                    master_weight_bits=bits,
                    stochastic_rounding=not in_pieces,
                )
                for net in (model, twin)
            )
            train(model, optimizer, range(1, 3))
            train(twin, reference, range(1, 3))
            assert_same(everything(model, optimizer), everything(twin, reference), shape)


@case(2)
def state_of_whole_groups_is_decoded_where_groups_are_cut(_: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for codec in ("root", "softsign"):
        for shape, placement in (
            ((4, 96), Shard(1)),
            ((4, 2, 128), Shard(2)),
            ((5, 130), Shard(1)),
        ):
            twin = tensors([shape])
            quantized = flash.FlashAdamW(twin.parameters(), codec=codec)
            train(twin, quantized, range(1, 3))
            saved = quantized.state_dict()
            reference = flash.FlashAdamW(twin.parameters(), quantize=False)
            reference.load_state_dict(saved)
            model = distributed(tensors([shape]), mesh, [placement])
            cut = flash.FlashAdamW(model.parameters(), quantize=False)
            rows = distributed(tensors([shape]), mesh, [Shard(0)])
            by_rows = flash.FlashAdamW(rows.parameters(), codec=codec)
            by_rows.load_state_dict(saved)
            for state_dict in (saved, by_rows.state_dict()):
                cut.load_state_dict(state_dict)
                for param, other in zip(model.parameters(), twin.parameters(), strict=True):
                    assert same_bits(whole(cut.state[param]), dict(reference.state[other])), shape
            # And back.
            quantized.load_state_dict(cut.state_dict())
            assert same_bits(quantized.state_dict()["state"], saved["state"])


@case(4)
def tensor_parallel_under_fully_shard(_: Path) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 12)).bfloat16()
    twin = copy.deepcopy(model)
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    shard(model, mesh["data"])
    strided = model[0].weight.placements[0]
    assert type(strided).__name__ == "_StridedShard", strided
    assert model[1].weight.placements == (Shard(0), Shard(1))
    optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
    reference = flash.FlashAdamW(twin.parameters(), lr=1e-2)
    for step in range(3):
        model(torch.randn(4, 64).bfloat16()).sum().backward()
        for param, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.grad = whole(param.grad)
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
        assert_same(everything(model, optimizer), everything(twin, reference), step)


@case(2)
def gradients_that_are_sums_over_ranks_are_refused(_: Path) -> None:
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.LayerNorm(8))
    parallelize_module(model, mesh, {"0": SequenceParallel()})
    optimizer = flash.FlashAdamW(model.parameters(), lr=0.1)
    model(torch.randn(2, 4, 8)).square().sum().backward()
    weight = model[0].weight
    assert weight.grad.placements == (Partial(),)
    before = local(weight).clone()
    for _ in range(2):  # at the first step, and with a plan
        with pytest.raises(ValueError, match=r"parameter 0.*Partial.*redistribute"):
            optimizer.step()
        assert torch.equal(local(weight), before)
    for param in model.parameters():
        param.grad = param.grad.redistribute(param.device_mesh, param.placements)
    optimizer.step()
    gathered = [torch.empty_like(before) for _ in range(2)]
    dist.all_gather(gathered, local(weight).detach())
    assert torch.equal(gathered[0], gathered[1])
    assert not torch.equal(gathered[0], before)
    weight.grad = DTensor.from_local(torch.ones(8), mesh, [Partial()])
    with pytest.raises(ValueError, match=r"Partial.*redistribute"):
        optimizer.step()


@case(2)
def training_by_fully_shard(_: Path) -> None:
    """C2: Real gradients, averaged over ranks; with options of FSDP and around it."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    def checkpointed(model: nn.Module) -> nn.Module:
        model.hidden = checkpoint_wrapper(model.hidden)
        return model

    ways = {
        "plain": lambda model: shard(model),
        "mixed": lambda model: shard(
            model.float(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        ),
        "offload": lambda model: shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False)),
        "checkpointed": lambda model: shard(checkpointed(model)),
        "not resharded": lambda model: shard(model, reshard_after_forward=False),
        "compiled": lambda model: torch.compile(shard(model), backend="eager"),
    }
    for way, wrap in ways.items():
        model = wrap(Network())
        twin = Network().to(next(model.parameters()).dtype)
        optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
        reference = flash.FlashAdamW(twin.parameters(), lr=1e-2)
        for step in range(3):
            tokens = torch.randint(
                13, (3, 4), generator=torch.Generator().manual_seed(step + 7 * dist.get_rank())
            )
            model(tokens).float().square().sum().backward()
            for param, other in zip(model.parameters(), twin.parameters(), strict=True):
                other.grad = None if param.grad is None else whole(param.grad)
            optimizer.step()
            reference.step()
            optimizer.zero_grad()
            assert_same(everything(model, optimizer), everything(twin, reference), (way, step))
        first, last = Network().hidden.weight, whole(next(iter(optimizer.state)))
        assert not same_bits(first.detach(), last), way


@case(2)
def data_parallel(_: Path) -> None:
    """DistributedDataParallel keeps plain tensors and gives all ranks the same gradients."""
    from torch.nn.parallel import DistributedDataParallel

    twin, model = Network(), DistributedDataParallel(Network())
    optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2, nonfinite="skip")
    reference = flash.FlashAdamW(twin.parameters(), lr=1e-2, nonfinite="skip")
    for step in range(4):
        tokens = torch.randint(
            13, (3, 4), generator=torch.Generator().manual_seed(step + 7 * dist.get_rank())
        )
        loss = model(tokens).float().square().sum()
        if step == 2 and dist.get_rank() == 1:
            loss = loss * float("inf")  # reaches both ranks by the average
        loss.backward()
        for param, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.grad = None if param.grad is None else param.grad.clone()
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
        assert_same(everything(model, optimizer), everything(twin, reference), step)
    assert optimizer.skipped_tensors == reference.skipped_tensors > 0
    for value in [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]:
        copies = [torch.empty_like(value) for _ in range(2)]
        dist.all_gather(copies, value.detach())
        assert same_bits(copies[0], copies[1])


@case(2)
def a_rank_without_gradients_has_the_same_state(_: Path) -> None:
    """B13."""
    model = shard(tensors([(5, 64), (1, 64)], [torch.bfloat16]))
    optimizer = flash.FlashAdamW(model.parameters())
    set_gradients(model.parameters(), 1)
    params = list(model.parameters())
    if dist.get_rank() == 1:
        params[0].grad = None
    before = [local(param).clone() for param in params]
    optimizer.step()
    keys = [sorted(optimizer.state[param]) for param in params]
    assert keys[0] == keys[1]
    assert same_bits(before[0], local(params[0]).detach()) == (dist.get_rank() == 1)
    assert float(optimizer.state[params[0]]["step"]) == 1 - dist.get_rank()
    states = [None, None]
    dist.all_gather_object(states, keys)
    assert states[0] == states[1]


@case(2, 3)
def a_scaler_skips_on_all_ranks(_: Path) -> None:
    model = shard(tensors([(6, 64), (2, 64)], [torch.float16]))
    optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    for step in range(3):
        before = everything(model, optimizer)
        set_gradients(model.parameters(), step)
        if step == 1 and dist.get_rank() == 0:
            local(next(model.parameters()).grad)[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        changed = not all(
            same_bits(a[0], b[0]) for a, b in zip(before, everything(model, optimizer), strict=True)
        )
        assert changed == (step != 1)
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


@case(2)
def nonfinite_policies_are_of_each_shard(_: Path) -> None:
    for policy in ("skip", "error"):
        model = shard(tensors([(4, 64), (3, 64)], [torch.bfloat16]))
        optimizer = flash.FlashAdamW(model.parameters(), nonfinite=policy)
        set_gradients(model.parameters(), 1)
        param, other = model.parameters()
        before = [local(p).clone() for p in (param, other)]
        if dist.get_rank() == 0:
            local(param.grad)[0, 0] = float("nan")
        if policy == "error" and dist.get_rank() == 0:
            with pytest.raises(RuntimeError, match="parameter 0"):
                optimizer.step()
            assert same_bits(before, [local(p).detach() for p in (param, other)])
            continue
        optimizer.step()
        assert optimizer.skipped_tensors == (dist.get_rank() == 0)
        assert same_bits(before[0], local(param).detach()) == (dist.get_rank() == 0)
        assert not same_bits(before[1], local(other).detach())


@case(2)
def a_moved_shard_makes_a_new_plan(_: Path) -> None:
    """FSDP replaces the local tensor in place when a model is moved or loaded."""
    model, twin = shard(tensors([(5, 64)])), tensors([(5, 64)])
    optimizers = [flash.FlashAdamW(m.parameters(), lr=1e-2) for m in (model, twin)]
    for m, optimizer in zip((model, twin), optimizers, strict=True):
        train(m, optimizer, range(1, 3))
    for param in model.parameters():
        param._local_tensor = param._local_tensor.clone()
        state = optimizers[0].state[param]["exp_avg"]
        state._local_tensor = state._local_tensor.clone()
    kept = [local(param) for param in model.parameters()]
    for m, optimizer in zip((model, twin), optimizers, strict=True):
        train(m, optimizer, range(3, 5))
    assert_same(*map(everything, (model, twin), optimizers), "moved")
    assert all(
        a is local(b) or a.data_ptr() == local(b).data_ptr()
        for a, b in zip(kept, model.parameters(), strict=True)
    )


@case(2)
def a_torch_without_the_exchange_functions(_: Path) -> None:
    """Before 2.10 addresses are read in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plan, "_READER", _plan._PythonReader())
        compare(shard(tensors()), tensors(), "adamw", "default")


@case(2)
def state_that_is_cut_in_another_way_is_refused(_: Path) -> None:
    model = shard(tensors([(4, 128)], [torch.bfloat16]))
    optimizer = flash.FlashAdamW(model.parameters())
    train(model, optimizer, range(1, 2))
    (param,) = model.parameters()
    state = dict(optimizer.state[param])
    for name, wrong in (
        ("exp_avg", state["exp_avg"].redistribute(placements=[Shard(1)])),
        ("exp_avg_scale", state["exp_avg_scale"].full_tensor()),
    ):
        optimizer.state[param][name] = wrong
        with pytest.raises(ValueError, match=rf"parameter 0 of group 0.*'{name}'"):
            train(model, optimizer, range(2, 3))
        optimizer.state[param][name] = state[name]
    train(model, optimizer, range(2, 3))
