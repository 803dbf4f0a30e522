"""States that other packages wrote (tests/fixtures, made by them) go on with the same meaning.

`masters` and `moments` in a fixture are what the package itself says that its state dict means.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import master, same_bits
from flashoptim_cpp import _foreign_bitsandbytes, _foreign_official
from torch import Tensor, nn

FIXTURES = Path(__file__).parents[1] / "fixtures"
OFFICIAL = ("flashoptim-0.1.3", "flashoptim-0.1.4")


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(FIXTURES / f"{name}.pt", weights_only=True)
    return loaded


def cases(*names: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{name}:{key}")
        for name in names
        for key, case in fixture(name)["cases"].items()
    ]


def case_of(name: str, key: str) -> dict[str, Any]:
    case: dict[str, Any] = fixture(name)["cases"][key]
    return case


def parameters(weights: list[Tensor]) -> list[nn.Parameter]:
    return [nn.Parameter(weight.clone()) for weight in weights]


def loaded(
    case: dict[str, Any], name: str, **options: Any
) -> tuple[list[nn.Parameter], flash.FlashOptimizer]:
    """The case's parameters, and our optimizer with its state."""
    params = parameters(case["weights"])
    optimizer = getattr(flash, name)(params, **options)
    before = copy.deepcopy(case["state_dict"])
    optimizer.load_state_dict(case["state_dict"])
    assert same_bits(case["state_dict"], before)
    return params, optimizer


def step(
    params: list[nn.Parameter], optimizer: flash.FlashOptimizer, gradients: list[Tensor]
) -> None:
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient.to(param.dtype)
    optimizer.step()


def assert_same_step(
    params: list[nn.Parameter],
    optimizer: flash.FlashOptimizer,
    case: dict[str, Any],
    before: list[Tensor],
    after: list[Tensor],
    bound: float,
) -> None:
    """The next step goes where the other package's went, to within a share of the largest move.

    That, and the roundings of both master weights.
    """
    step(params, optimizer, case["gradients"])
    for i, (param, start, end) in enumerate(zip(params, before, after, strict=True)):
        off = (master(param, optimizer) - end).abs()
        rounding = 2.0**-23 * end.abs()
        if param.dtype != torch.float32:
            saved = case["state_dict"]["state"].get(i, {})
            corrected = "error_bits" in saved
            rounding = unit_of(param.detach()) * (2.0**-8 if corrected else 1.0)
        assert bool((off <= bound * (end - start).abs().max() + rounding).all())


def unit_of(weight: Tensor) -> Tensor:
    """The unit in the last place of 16-bit weights in the normal range."""
    bits = {torch.bfloat16: 8, torch.float16: 11}[weight.dtype]
    exponent = torch.frexp(weight.float()).exponent - bits
    return torch.exp2(exponent.double()).float()


@pytest.mark.parametrize("case", cases(*OFFICIAL))
def test_official_moments_are_those_that_flashoptim_reads(case: dict[str, Any]) -> None:
    params, optimizer = loaded(case, case["optimizer"], quantize=False)
    for param, moments in zip(params, case["moments"], strict=True):
        state = optimizer.state[param]
        for name, values in moments.items():
            assert same_bits(state[name], values)
        group = case["state_dict"]["param_groups"][0]
        steps = 4 if "Adam" in case["optimizer"] else int(bool(group.get("momentum", 1)))
        assert float(state["step"]) == steps
        assert "error_bits" not in state


@pytest.mark.parametrize("case", cases(*OFFICIAL))
def test_official_moments_are_encoded_once(case: dict[str, Any]) -> None:
    params, optimizer = loaded(case, case["optimizer"])
    moments = case["moments"][0]
    for name, values in moments.items():
        codes, scale = flash.quantize(values, second_moment=name == "exp_avg_sq")
        assert same_bits(optimizer.state[params[0]][name], codes)
        assert same_bits(optimizer.state[params[0]][f"{name}_scale"], scale)


@pytest.mark.parametrize("bits", [24, 32])
@pytest.mark.parametrize("case", cases(*OFFICIAL))
def test_official_master_weights_become_ours(case: dict[str, Any], bits: int) -> None:
    params, optimizer = loaded(case, case["optimizer"], master_weight_bits=bits)
    for i, (param, theirs) in enumerate(zip(params, case["masters"], strict=True)):
        assert same_bits(param.detach(), case["weights"][i])
        saved = case["state_dict"]["state"].get(i, {})
        if "error_bits" not in saved:
            assert same_bits(master(param, optimizer), theirs)
            continue
        error = _foreign_official._error_bits(
            saved["error_bits"], param.detach(), case["state_dict"]["param_groups"][0]
        )
        assert same_bits(_foreign_official.master_weight(param.detach(), error), theirs)
        off = (master(param, optimizer) - theirs).abs() / unit_of(param.detach())
        inside = error.abs() < 126 / 127 * torch.iinfo(error.dtype).max
        # Half a unit of our grid; a whole one where theirs is half-way to the next weight.
        grid = (
            2.0**-8
            if bits == 24
            else {torch.bfloat16: 2.0**-16, torch.float16: 2.0**-13}[param.dtype]
        )
        assert bool((off <= grid).all())
        assert bool((off[inside] <= 0.51 * grid + 2.0**-13).all())
        assert bool((optimizer.state[param]["weight_correction"] != 0).any())


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("case", cases(*OFFICIAL))
def test_training_of_flashoptim_goes_on(case: dict[str, Any], quantize: bool) -> None:
    params, optimizer = loaded(case, case["optimizer"], quantize=quantize, master_weight_bits=32)
    bound = 0.06 if quantize else 0.002
    assert_same_step(params, optimizer, case, case["masters"], case["masters_after"], bound)


def test_master_weights_of_all_error_bits_are_within_half_a_unit() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        weights = (
            torch.arange(-(1 << 15), 1 << 15, 7, dtype=torch.int32).to(torch.int16).view(dtype)
        )
        weights = weights[weights.isfinite()]
        for error_dtype in (torch.int8, torch.int16):
            largest = torch.iinfo(error_dtype).max
            up, down = (
                _foreign_official.master_weight(
                    weights, torch.full_like(weights, e, dtype=error_dtype)
                )
                for e in (largest, -largest)
            )
            following = torch.nextafter(weights, torch.full_like(weights, float("inf")))
            fits = following.isfinite() & (weights >= 0)
            middle = (weights.double() + following.double()) / 2
            assert torch.equal(up.double()[fits], middle[fits])
            assert torch.equal((up.double() + down.double())[fits] / 2, weights.double()[fits])


@pytest.mark.parametrize("case", cases("bitsandbytes"))
def test_bitsandbytes_moments_are_those_that_it_reads(case: dict[str, Any]) -> None:
    name = OURS[case["optimizer"]]
    params, optimizer = loaded(case, name, quantize=False)
    names = ["momentum_buffer"] if "SGD" in name else ["exp_avg", "exp_avg_sq"]
    for param, moments in zip(params, case["moments"], strict=True):
        for moment, values in zip(names, moments, strict=False):
            assert same_bits(optimizer.state[param][moment], values)
        assert len(moments) == (2 if "Adam" in name else 1)
        assert float(optimizer.state[param]["step"]) == 4


OURS = {
    "AdamW8bit": "FlashAdamW",
    # bitsandbytes decouples weight decay in both, so FlashAdamW takes the place of both.
    "Adam8bit": "FlashAdam",
    "AdamW32bit": "FlashAdamW",
    "Lion8bit": "FlashLion",
    "SGD8bit": "FlashSGD",
}


@pytest.mark.parametrize("size", [256, 2048])
@pytest.mark.parametrize("count", [1, 257, 2048, 4097])
def test_bitsandbytes_blocks_are_of_the_size_that_the_factors_say(size: int, count: int) -> None:
    codes = torch.arange(count).to(torch.uint8)
    table, factors = torch.linspace(-1, 1, 256), 1.0 + torch.arange(-(-count // size))
    values = _foreign_bitsandbytes.decode_moment(codes, table, factors)
    for i in (0, count // 2, count - 1):
        assert float(values[i]) == float(table[i % 256] * factors[i // size])


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("case", cases("bitsandbytes"))
def test_training_of_bitsandbytes_goes_on(case: dict[str, Any], quantize: bool) -> None:
    params, optimizer = loaded(case, OURS[case["optimizer"]], quantize=quantize)
    bound = 0.06 if quantize else 1e-4
    assert_same_step(params, optimizer, case, case["weights"], case["weights_after"], bound)


def test_a_16_bit_parameter_starts_without_a_correction_where_the_package_had_none() -> None:
    case = case_of("bitsandbytes", "adamw")
    params = [nn.Parameter(weight.bfloat16()) for weight in case["weights"]]
    optimizer = flash.FlashAdamW(params)
    optimizer.load_state_dict(case["state_dict"])
    for param in params:
        assert not bool(optimizer.state[param]["weight_correction"].any())
        assert torch.equal(master(param, optimizer), param.detach().float())


@pytest.mark.parametrize("case", cases("lion_pytorch"))
def test_training_of_lion_pytorch_goes_on(case: dict[str, Any]) -> None:
    decoupled = case["options"].get("decoupled_weight_decay", False)
    params, optimizer = loaded(case, "FlashLion", quantize=False, decouple_lr=decoupled)
    for i, param in enumerate(params):
        assert same_bits(
            optimizer.state[param]["exp_avg"], case["state_dict"]["state"][i]["exp_avg"]
        )
    assert_same_step(params, optimizer, case, case["weights"], case["weights_after"], 1e-5)


@pytest.mark.parametrize("key", ["sgd", "sgd-without-momentum"])
def test_options_are_taken_and_what_only_the_other_package_knows_is_not(key: str) -> None:
    case = case_of("flashoptim-0.1.4", key)
    _, optimizer = loaded(case, "FlashSGD", lr=5.0)
    group = optimizer.param_groups[0]
    assert group["lr"] == 1e-2
    assert group["momentum"] == case["options"].get("momentum", 0.0)
    assert "master_bytewidth" not in group
    _, optimizer = loaded(case_of("bitsandbytes", "sgd"), "FlashSGD", dampening=0.5)
    group = optimizer.param_groups[0]
    assert (group["momentum"], group["dampening"]) == (0.9, 0.0)
    assert not {"t_alpha", "alpha", "t_beta3", "betas", "eps"} & group.keys()


def put(name: str, make: Any) -> Any:
    """Replaces an entry of the first parameter's state, wherever it is."""

    def change(saved: dict[str, Any]) -> None:
        state = saved["state"][0]
        state = state.get("__bnb_optimizer_quant_state__", state)
        state[name] = make(state[name]) if name in state else make(None)

    return change


def cut(name: str) -> Any:
    def change(saved: dict[str, Any]) -> None:
        state = saved["state"][0]
        del state.get("__bnb_optimizer_quant_state__", state)[name]

    return change


FIRST = r"parameter 0 of group 0: .*"
BAD: dict[str, tuple[str, str, str, Any, str]] = {
    "official codes cast": (
        "flashoptim-0.1.4",
        "adamw",
        "FlashAdamW",
        put("exp_avg::quantized", lambda t: t.bfloat16()),
        FIRST + "'exp_avg::quantized' is torch.bfloat16, not torch.int8; pass the state dict as",
    ),
    "official scales cast": (
        "flashoptim-0.1.3",
        "lion",
        "FlashLion",
        put("exp_avg::scales", lambda t: t.float()),
        FIRST + "'exp_avg::scales' is torch.float32, not torch.float16",
    ),
    "official scales gone": (
        "flashoptim-0.1.4",
        "lion",
        "FlashLion",
        cut("exp_avg::scales"),
        FIRST + "'exp_avg::scales' is NoneType",
    ),
    "official scales of a shard": (
        "flashoptim-0.1.4",
        "lion",
        "FlashLion",
        put("exp_avg::scales", lambda t: t[:2]),
        FIRST + r"'exp_avg::scales' is \[2\], and \[4\] belongs to 120 codes",
    ),
    "official error bits of another shape": (
        "flashoptim-0.1.4",
        "adamw",
        "FlashAdamW",
        put("error_bits", lambda t: t[:1]),
        FIRST + r"'error_bits' in its saved state is \[1, 40\], and the parameter \[3, 40\]",
    ),
    "official error bits of another dtype": (
        "flashoptim-0.1.4",
        "adamw-32",
        "FlashAdamW",
        put("error_bits", lambda t: t.float()),
        FIRST + "'error_bits' in its saved state is torch.float32, and should be torch.int16",
    ),
    "official error bits without a width": (
        "flashoptim-0.1.4",
        "adamw",
        "FlashAdamW",
        lambda saved: saved["param_groups"][0].pop("master_bytewidth"),
        FIRST + "its group says master_bytewidth=None, not 3 or 4",
    ),
    "official SGD into Lion": (
        "flashoptim-0.1.4",
        "sgd",
        "FlashLion",
        lambda _: None,
        FIRST + "'momentum_buffer::quantized', which this optimizer does not keep",
    ),
    "bitsandbytes of before blocks": (
        "bitsandbytes",
        "adamw",
        "FlashAdamW",
        cut("absmax1"),
        FIRST + "'state1' .* only blockwise states can be read: make it with",
    ),
    "bitsandbytes blocks of another size": (
        "bitsandbytes",
        "adamw",
        "FlashAdamW",
        put("absmax2", lambda _: torch.ones(5)),
        FIRST + "300 codes have 5 factors",
    ),
    "bitsandbytes Adam into Lion": (
        "bitsandbytes",
        "adamw",
        "FlashLion",
        lambda _: None,
        FIRST + r"its saved state has a second moment \('state2'\); load it with FlashAdamW",
    ),
    "bitsandbytes Lion into Adam": (
        "bitsandbytes",
        "lion",
        "FlashAdamW",
        lambda _: None,
        FIRST + "no tensor 'state2'",
    ),
}


@pytest.mark.parametrize("key", BAD)
def test_foreign_states_that_do_not_fit_are_refused_and_change_nothing(key: str) -> None:
    name, case_key, ours, change, message = BAD[key]
    case = case_of(name, case_key)
    params = parameters(case["weights"])
    optimizer = getattr(flash, ours)(params)
    before = copy.deepcopy(optimizer.param_groups)
    change(case["state_dict"])
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(case["state_dict"])
    assert not optimizer.state
    assert same_bits(
        [{**g, "params": 0} for g in before], [{**g, "params": 0} for g in optimizer.param_groups]
    )


def test_error_bits_need_the_16_bit_parameter_that_they_belong_to() -> None:
    case = case_of("flashoptim-0.1.4", "adamw")
    params = [nn.Parameter(weight.float()) for weight in case["weights"]]
    with pytest.raises(ValueError, match=FIRST + "belongs to a 16-bit parameter"):
        flash.FlashAdamW(params).load_state_dict(case["state_dict"])


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_weight_decay_does_not_change_its_meaning_in_silence(decay: float) -> None:
    param = nn.Parameter(torch.randn(4, 64))
    theirs = torch.optim.AdamW([param], weight_decay=decay)
    param.grad = torch.randn_like(param)
    theirs.step()
    optimizer = flash.FlashAdam([param])
    if decay:
        with pytest.raises(
            ValueError, match=r"weight_decay=0.1 .* decoupled.*load it with FlashAdamW"
        ):
            optimizer.load_state_dict(theirs.state_dict())
        with pytest.raises(ValueError, match=r"an L2 term.*load it with FlashAdam,"):
            flash.FlashAdamW([param]).load_state_dict(
                torch.optim.Adam([param], weight_decay=decay).state_dict()
            )
    else:
        optimizer.load_state_dict(theirs.state_dict())
        assert float(optimizer.state[param]["step"]) == 1
