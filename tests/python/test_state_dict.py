"""Saving and loading: exact resumption, conversions at loading, and torch's own state dicts."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import (
    RULES,
    STORAGES,
    bits_of,
    master,
    mixed_parameters,
    parameter,
    same_bits,
    set_gradients,
    train,
)
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)


def through_a_file(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def copies(params: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in params]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(rule: str, storage: str) -> None:
    """B15."""
    make, options = RULES[rule]
    options = {"lr": 1e-2, **options, **STORAGES[storage]}
    params = mixed_parameters()
    start = copies(params)
    optimizer = make(params, **options)
    train(params, optimizer, range(30))

    halfway = copies(start)
    first = make(halfway, **options)
    train(halfway, first, range(15))
    saved = through_a_file({"params": [p.detach() for p in halfway], "state": first.state_dict()})
    resumed = [nn.Parameter(p) for p in saved["params"]]
    second = make(resumed, **options)
    second.load_state_dict(saved["state"])
    train(resumed, second, range(15, 30))
    assert same_bits(bits_of(resumed, second), bits_of(params, optimizer))


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("rule", RULES)
def test_copies_and_pickles_go_on_alike_and_apart(rule: str, copier: Any, steps: int) -> None:
    """B18."""
    make, options = RULES[rule]
    params = mixed_parameters()
    optimizer = make(params, **options)
    train(params[2:], optimizer, range(steps))
    twins, twin = copier((params, optimizer))
    assert isinstance(twin, type(optimizer))
    assert same_bits(bits_of(twins, twin), bits_of(params, optimizer))
    before = bits_of(params, optimizer)
    train(twins, twin, range(steps, steps + 3))
    assert same_bits(bits_of(params, optimizer), before)
    train(params, optimizer, range(steps, steps + 3))
    assert same_bits(bits_of(twins, twin), bits_of(params, optimizer))


def test_a_state_dict_before_the_first_step_and_of_unused_parameters_is_like_torchs() -> None:
    """B11."""
    used, frozen, unused = parameter(4, 64), parameter(4, 64), parameter(4, 64)
    frozen.requires_grad_(False)
    for make in (flash.FlashAdamW, torch.optim.AdamW):
        optimizer = make([used, frozen, unused])
        assert optimizer.state_dict()["state"] == {}
        fresh = make([used, frozen, unused])
        fresh.load_state_dict(through_a_file(optimizer.state_dict()))
        train([used], optimizer, range(2))
        saved = optimizer.state_dict()
        assert saved["state"].keys() == {0}
        assert [group["params"] for group in saved["param_groups"]] == [[0, 1, 2]]
        fresh.load_state_dict(through_a_file(saved))
        assert list(fresh.state) == [used]


def test_the_version_of_the_format_is_in_every_group() -> None:
    optimizer = flash.FlashAdamW([{"params": [parameter(2)]}, {"params": [parameter(2)]}])
    groups = optimizer.state_dict()["param_groups"]
    assert [group["flashoptim_format"] for group in groups] == [flash.FORMAT_VERSION] * 2


def test_loaded_tensors_are_not_those_of_the_state_dict() -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(2))
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved)
    twin = nn.Parameter(param.detach().clone())
    second = flash.FlashAdamW([twin])
    second.load_state_dict(saved)
    train([twin], second, range(2, 4))
    assert same_bits(saved["state"], kept["state"])
    assert float(optimizer.state[param]["step"]) == 2


def test_a_state_dict_can_be_loaded_into_the_optimizer_it_came_from() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(2))
    before = bits_of([param], optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert same_bits(bits_of([param], optimizer), before)


@pytest.mark.parametrize(
    "step",
    [3, 3.0, torch.tensor(3.0), torch.tensor(3), torch.tensor([3.0]), torch.tensor(3.0).double()],
    ids=repr,
)
def test_a_step_count_of_any_type_is_accepted(step: Any) -> None:
    """B6."""
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["step"] = step
    saved["state"][0]["stream_key"] = int(saved["state"][0]["stream_key"])
    fresh = flash.FlashAdamW([param])
    fresh.load_state_dict(saved)
    loaded = fresh.state[param]
    assert same_bits(loaded["step"], torch.tensor(3.0))
    assert same_bits(loaded["stream_key"], torch.tensor(0))
    train([param], fresh, range(3, 4))
    assert float(fresh.state[param]["step"]) == 4


def test_hyperparameters_come_from_the_state_dict_and_ways_of_working_stay() -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW(
        [param], lr=0.5, betas=(0.5, 0.6), seed=3, nonfinite="skip", maximize=True, fused=True
    )
    train([param], optimizer, range(1))
    fresh = flash.FlashAdamW(
        [param], codec="softsign", master_weight_bits=32, compress_state_dict=False
    )
    fresh.load_state_dict(optimizer.state_dict())
    group = fresh.param_groups[0]
    taken = [group[k] for k in ("lr", "betas", "seed", "nonfinite", "maximize", "initial_lr")]
    assert taken == [0.5, (0.5, 0.6), 3, "skip", True, 0.5]
    stayed = [group[k] for k in ("codec", "master_weight_bits", "compress_state_dict", "fused")]
    assert stayed == ["softsign", 32, False, None]


@pytest.mark.parametrize(
    ("saved", "loading", "bound"),
    [
        ({}, {"quantize": False}, 0.0),
        ({"codec": "softsign"}, {"codec": "none"}, 0.0),
        ({"quantize": False}, {}, 0.02),
        ({"quantize": False}, {"codec": "softsign"}, 0.02),
        ({"codec": "softsign"}, {"codec": "root"}, 0.02),
        ({"codec": "root"}, {"codec": "softsign"}, 0.02),
    ],
    ids=str,
)
def test_moments_are_converted_at_loading(saved: Any, loading: Any, bound: float) -> None:
    def moments(optimizer: Any) -> list[torch.Tensor]:
        plain = copy.deepcopy(optimizer)
        plain.param_groups[0]["quantize"] = False
        state = plain.state_dict()["state"][0]
        return [state["exp_avg"], state["exp_avg_sq"]]

    param = parameter(8, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param], **saved)
    train([param], optimizer, range(10))
    fresh = flash.FlashAdamW([param], **loading)
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    for a, b in zip(moments(optimizer), moments(fresh), strict=True):
        assert float((a - b).abs().max()) <= bound * float(a.abs().max())
    assert same_bits(
        optimizer.state[param]["weight_correction"], fresh.state[param]["weight_correction"]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_corrections_are_converted_at_loading(dtype: torch.dtype) -> None:
    params = [parameter(8, 64, dtype=dtype)]
    wide = flash.FlashAdamW(params, master_weight_bits=32)
    train(params, wide, range(10))
    exact = master(params[0], wide)
    narrow = flash.FlashAdamW(params, master_weight_bits=24)
    narrow.load_state_dict(wide.state_dict())
    close = master(params[0], narrow)
    unit = {torch.bfloat16: 2.0**-15, torch.float16: 2.0**-18}[dtype]
    assert float(((exact - close).abs() / exact.abs()).max()) <= unit
    assert not torch.equal(exact, close)
    wide_again = flash.FlashAdamW(params, master_weight_bits=32)
    wide_again.load_state_dict(narrow.state_dict())
    assert same_bits(master(params[0], wide_again), close)
    none = flash.FlashAdamW(params, master_weight_bits=16, stochastic_rounding=True)
    none.load_state_dict(narrow.state_dict())
    assert "weight_correction" not in none.state[params[0]]


def test_moments_move_to_another_memory_order() -> None:
    source = nn.Parameter(torch.randn(8, 16, 3, 3).to(memory_format=torch.channels_last))
    optimizer = flash.FlashAdamW([source])
    train([source], optimizer, range(5))
    target = nn.Parameter(source.detach().contiguous())
    fresh = flash.FlashAdamW([target])
    fresh.load_state_dict(optimizer.state_dict())
    state = fresh.state[target]
    assert state["exp_avg"].is_contiguous()
    before = optimizer.state[source]
    a = flash.dequantize(before["exp_avg"], before["exp_avg_scale"])
    b = flash.dequantize(state["exp_avg"], state["exp_avg_scale"])
    assert float((a - b).abs().max()) < 0.01 * float(a.abs().max())
    train([target], fresh, range(5, 7))


@pytest.mark.parametrize(
    ("theirs", "ours", "options"),
    [
        (torch.optim.AdamW, flash.FlashAdamW, {}),
        (torch.optim.AdamW, flash.FlashAdamW, {"amsgrad": True}),
        (torch.optim.Adam, flash.FlashAdam, {"weight_decay": 0.1}),
        (torch.optim.SGD, flash.FlashSGD, {"momentum": 0.9, "dampening": 0.5, "lr": 1e-2}),
        (torch.optim.SGD, flash.FlashSGD, {"lr": 1e-2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("quantize", [True, False])
def test_a_state_dict_of_torch_goes_on(
    theirs: Any, ours: Any, options: dict[str, Any], quantize: bool
) -> None:
    """B8, B19."""
    params = [parameter(8, 64), parameter(3, 5)]
    reference = theirs(params, **options)
    train(params, reference, range(5))
    saved = through_a_file(reference.state_dict())
    twins = copies(params)
    start = copies(params)
    optimizer = ours(twins, quantize=quantize, **options)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["initial_lr"] == optimizer.param_groups[0]["lr"]
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0, last_epoch=5)
    train(params, reference, range(5, 8))
    train(twins, optimizer, range(5, 8))
    for p, q, s in zip(params, twins, start, strict=True):
        moved = float((p - s).detach().norm())
        assert float((p - q).detach().norm()) < (0.05 if quantize else 1e-4) * moved


def test_a_plain_state_dict_goes_back_to_torch() -> None:
    """B8."""
    params = [parameter(8, 64)]
    optimizer = flash.FlashAdamW(params, compress_state_dict=False)
    train(params, optimizer, range(5))
    twins = copies(params)
    reference = torch.optim.AdamW(twins)
    reference.load_state_dict(through_a_file(optimizer.state_dict()))
    start = copies(params)
    train(params, optimizer, range(5, 8))
    train(twins, reference, range(5, 8))
    moved = float((params[0] - start[0]).detach().norm())
    assert float((params[0] - twins[0]).detach().norm()) < 0.05 * moved


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq", "weight_correction"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_codes_that_somebody_cast_to_floats_are_restored(name: str, dtype: torch.dtype) -> None:
    param = parameter(8, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(5))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0][name] = saved["state"][0][name].to(dtype)
    fresh = flash.FlashAdamW([param])
    fresh.load_state_dict(saved)
    assert same_bits(dict(fresh.state[param]), dict(optimizer.state[param]))


def test_a_cast_by_torchs_own_loading_is_refused_where_it_lost_bits() -> None:
    param = parameter(8, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(5))
    caster = torch.optim.AdamW([param])
    caster.load_state_dict(optimizer.state_dict())
    assert caster.state[param]["exp_avg_scale"].dtype == torch.bfloat16
    fresh = flash.FlashAdamW([param])
    with pytest.raises(
        ValueError, match=r"parameter 0 of group 0: 'exp_avg_scale' .*torch.bfloat16"
    ):
        fresh.load_state_dict(caster.state_dict())
    assert not fresh.state


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_distributed_checkpoints_of_one_process_resume_exactly(
    rule: str, flatten: bool, tmp_path: Path
) -> None:
    make, options = RULES[rule]
    how = StateDictOptions(flatten_optimizer_state_dict=flatten)
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8)).bfloat16()
    optimizer = make(model.parameters(), **options)
    train(list(model.parameters()), optimizer, range(3))
    saved = get_optimizer_state_dict(model, optimizer, options=how)
    checkpoint.save({"optimizer": saved}, checkpoint_id=tmp_path)

    twin = copy.deepcopy(model)
    fresh = make(twin.parameters(), **options)
    loaded = get_optimizer_state_dict(twin, fresh, options=how)
    checkpoint.load({"optimizer": loaded}, checkpoint_id=tmp_path)
    set_optimizer_state_dict(twin, fresh, loaded, options=how)
    params, twins = list(model.parameters()), list(twin.parameters())
    assert same_bits(bits_of(twins, fresh), bits_of(params, optimizer))
    train(params, optimizer, range(3, 5))
    train(twins, fresh, range(3, 5))
    assert same_bits(bits_of(twins, fresh), bits_of(params, optimizer))


def test_loading_honours_the_hooks_of_torch() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(2))
    calls: list[str] = []

    def replace(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        calls.append("pre")
        groups = [{**group, "lr": 0.125} for group in state_dict["param_groups"]]
        return {**state_dict, "param_groups": groups}

    fresh = flash.FlashAdamW([param])
    fresh.register_load_state_dict_pre_hook(replace)
    fresh.register_load_state_dict_post_hook(lambda _: calls.append("post"))
    fresh.register_state_dict_pre_hook(lambda _: calls.append("save"))
    fresh.register_state_dict_post_hook(lambda _, saved: {**saved, "extra": 1})
    saved = optimizer.state_dict()
    fresh.load_state_dict(state_dict=saved)
    assert calls == ["pre", "post"]
    assert fresh.param_groups[0]["lr"] == 0.125
    assert saved["param_groups"][0]["lr"] == 1e-3
    assert fresh.state_dict()["extra"] == 1


def test_hooks_of_saving_see_the_moments_as_they_are_returned() -> None:
    params = [parameter(4, 64), parameter(4, 64)]
    optimizer = flash.FlashAdamW(
        [{"params": params[:1]}, {"params": params[1:], "compress_state_dict": False}]
    )
    train(params, optimizer, range(2))
    seen: list[dict[str, Any]] = []
    optimizer.register_state_dict_post_hook(
        lambda _, saved: seen.append(copy.deepcopy(saved)), prepend=True
    )
    for _ in range(2):
        saved = optimizer.state_dict()
        assert same_bits(seen.pop(), saved)
        assert saved["state"][0]["exp_avg"].dtype == torch.int8
        assert saved["state"][1]["exp_avg"].dtype == torch.float32
        assert "exp_avg_scale" not in saved["state"][1]
    assert optimizer.state[params[1]]["exp_avg"].dtype == torch.int8


def test_stream_keys_stay_through_saving_and_new_parameters_get_others() -> None:
    params = [parameter(4, 64) for _ in range(4)]
    optimizer = flash.FlashAdamW([{"params": params[:2]}, {"params": params[2:3]}])
    train(params[1:3], optimizer, range(2))  # the first one has no state when it is saved
    fresh = flash.FlashAdamW([{"params": params[:2]}, {"params": params[2:3]}])
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    fresh.add_param_group({"params": params[3:]})
    train(params, fresh, range(2, 3))
    assert [int(fresh.state[p]["stream_key"]) for p in params] == [0, 1, 2, 3]


def test_stream_keys_of_the_state_dict_win_over_those_of_fresh_parameters() -> None:
    params = [parameter(4, 64) for _ in range(3)]
    optimizer = flash.FlashAdamW(params)
    train(params[:1], optimizer, range(1))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["stream_key"] = torch.tensor(1)
    fresh = flash.FlashAdamW(params)
    fresh.load_state_dict(saved)
    train(params, fresh, range(1, 2))
    keys = [int(fresh.state[p]["stream_key"]) for p in params]
    assert keys[0] == 1
    assert len(set(keys)) == 3


def test_state_dicts_merged_by_hand_do_not_share_keys() -> None:
    params = [parameter(4, 64) for _ in range(2)]
    halves = []
    for param in params:
        half = flash.FlashAdamW([param])
        train([param], half, range(1))
        halves.append(half.state_dict())
    merged = {
        "state": {0: halves[0]["state"][0], 1: halves[1]["state"][0]},
        "param_groups": [{**halves[0]["param_groups"][0], "params": [0, 1]}],
    }
    optimizer = flash.FlashAdamW(params)
    optimizer.load_state_dict(merged)
    assert len({int(optimizer.state[p]["stream_key"]) for p in params}) == 2


def test_a_skipped_first_step_can_be_saved() -> None:
    """B22."""
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    param.grad = torch.full_like(param, float("inf"))
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    saved = through_a_file(optimizer.state_dict())
    assert saved["state"] == {}
    optimizer.load_state_dict(saved)
    set_gradients([param], 0)
    optimizer.step()
    assert float(optimizer.state[param]["step"]) == 1
