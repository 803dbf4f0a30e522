"""Odd and hostile uses: they work, or one error says what is wrong before anything is written."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, parameter, same_bits, set_gradients, train
from torch import nn


class Plain(torch.Tensor):
    """A subclass that behaves as a tensor."""


class Counted(torch.Tensor):
    """A subclass that sees every function."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("kind", [Plain, Counted])
def test_parameters_of_a_tensor_subclass_have_plain_state(kind: Any) -> None:
    twin = parameter(4, 64, dtype=torch.bfloat16)
    param = nn.Parameter(twin.detach().clone().as_subclass(kind))
    optimizers = [flash.FlashAdamW([p], master_weight_bits=32) for p in (param, twin)]
    train([param], optimizers[0], range(3))
    train([twin], optimizers[1], range(3))
    assert isinstance(param, kind)
    assert {type(v) for v in optimizers[0].state[param].values()} == {torch.Tensor}
    file = io.BytesIO()
    torch.save(optimizers[0].state_dict(), file)
    file.seek(0)
    optimizers[0].load_state_dict(torch.load(file, weights_only=True))
    train([param], optimizers[0], range(3, 5))
    train([twin], optimizers[1], range(3, 5))
    assert same_bits(param.detach().as_subclass(torch.Tensor), twin.detach())


def test_c12_a_model_in_fp32_is_accepted_without_a_correction() -> None:
    """C12."""
    model = nn.Linear(64, 64)
    optimizer = flash.FlashAdamW(model.parameters())
    train(list(model.parameters()), optimizer, range(2))
    assert not any("weight_correction" in state for state in optimizer.state.values())
    assert optimizer.memory_report().by_kind.weight_correction == 0


SWITCHES = (
    "quantize",
    "stochastic_rounding",
    "maximize",
    "amsgrad",
    "decouple_lr",
    "compress_state_dict",
    "check_numerics",
    "capturable",
)


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", ["no", "False", 2, [], 0.5], ids=str)
def test_a_switch_that_is_neither_on_nor_off_is_refused(name: str, value: Any) -> None:
    param = parameter(4, 64)
    with pytest.raises(ValueError, match=rf"parameter group 0: {name} must be True or False, not"):
        flash.FlashAdamW([param], **{name: value})
    optimizer = flash.FlashAdamW([{"params": [param], name: 0}])
    optimizer.param_groups[0][name] = value
    before = param.detach().clone()
    set_gradients([param], 0)
    with pytest.raises(ValueError, match=rf"{name} must be True or False"):
        optimizer.step()
    assert same_bits(before, param.detach())


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay"])
def test_numbers_as_text_are_refused(name: str) -> None:
    """YAML reads 1e-3 as text, which schedulers cannot multiply."""
    with pytest.raises(TypeError, match=rf"{name} must be a number.*, not '1e-3'"):
        flash.FlashAdamW([parameter(2, 2)], **{name: "1e-3"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("quantise", "quantize"), ("weightdecay", "weight_decay"), ("beta", "betas")],
)
def test_an_option_of_a_group_that_is_misspelt_is_warned_of(name: str, meant: str) -> None:
    """C9."""
    with pytest.warns(UserWarning, match=f"'{name}', which .*did you mean '{meant}'"):
        flash.FlashAdamW([{"params": [parameter(2, 2)], name: 0}])


def test_what_frameworks_put_into_groups_is_not_warned_of() -> None:
    others = ("name", "lr_scale", "initial_lr", "max_lr", "max_momentum", "base_momentum", "swap")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flash.FlashAdamW([{"params": [parameter(2, 2)], **dict.fromkeys(others, 1.0)}])


@pytest.mark.parametrize("entry", ["exp_avg_scale", "exp_avg_sq_scale"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, 1e-40], ids=str)
@pytest.mark.parametrize("codec", ["root", "softsign"])
def test_scales_that_no_encoding_makes_are_refused(entry: str, value: float, codec: Any) -> None:
    params = [parameter(8, 64, dtype=torch.bfloat16) for _ in range(2)]
    optimizer = flash.FlashAdamW(params, codec=codec)
    train(params, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][1][entry][3, 0] = value
    before = bits_of(params, optimizer)
    with pytest.raises(ValueError, match=rf"parameter 1 of group 0: '{entry}'.*no scales"):
        optimizer.load_state_dict(saved)
    assert same_bits(bits_of(params, optimizer), before)


@pytest.mark.parametrize("entry", ["weight_correction", "exp_avg", "exp_avg_sq", "exp_avg_scale"])
@pytest.mark.parametrize(
    ("change", "what"), [(lambda t: t.to("meta"), "meta"), (lambda t: t.to_sparse(), "sparse")]
)
def test_saved_tensors_without_dense_memory_are_refused_before_the_first_is_written(
    entry: str, change: Any, what: str
) -> None:
    params = [parameter(8, 64, dtype=torch.bfloat16) for _ in range(2)]
    optimizer = flash.FlashAdamW(params)
    train(params, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    train(params, optimizer, range(2, 4))
    saved["state"][1][entry] = change(saved["state"][1][entry])
    before = bits_of(params, optimizer)
    with pytest.raises(ValueError, match=rf"parameter 1 of group 0: '{entry}'.*{what}"):
        optimizer.load_state_dict(saved)
    assert same_bits(bits_of(params, optimizer), before)


@pytest.mark.parametrize(
    ("saved", "error", "message"),
    [
        (None, TypeError, "a dictionary, not NoneType"),
        ([1], TypeError, "a dictionary, not list"),
        ({"state": None, "param_groups": None}, ValueError, "'param_groups' are no groups"),
        ({"state": {}, "param_groups": [{}]}, ValueError, "'param_groups' are no groups"),
        ({"state": [], "param_groups": [{"params": [0]}]}, ValueError, "'state' has entries"),
        ({"state": {0: [1]}, "param_groups": [{"params": [0]}]}, ValueError, "'state' has entries"),
    ],
    ids=str,
)
def test_what_is_no_state_dict_is_refused(saved: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        flash.FlashAdamW([parameter(2, 2)]).load_state_dict(saved)


def test_the_same_parameters_in_another_order_are_refused() -> None:
    """State is matched by place; where shapes agree, nothing else would notice."""
    one, two = parameter(4, 64), parameter(4, 64)
    optimizer = flash.FlashAdamW([("one", one), ("two", two)])
    train([one, two], optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    other = flash.FlashAdamW([("two", two), ("one", one)])
    with pytest.raises(ValueError, match=r"parameter group 0: parameter 0 is 'two', and 'one' in"):
        other.load_state_dict(saved)
    assert not other.state
    wrapped = flash.FlashAdamW([("module.one", one), ("module.two", two)])
    wrapped.load_state_dict(saved)  # other names are no other order
    assert same_bits(bits_of([one, two], wrapped), bits_of([one, two], optimizer))


def test_an_optimizer_can_be_saved_as_a_whole() -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param], lr=torch.tensor(1e-2))
    train([param], optimizer, range(2))
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    (twin,) = loaded.param_groups[0]["params"]
    for each, other in ((param, optimizer), (twin, loaded)):
        train([each], other, range(2, 4))
    assert same_bits(bits_of([param], optimizer), bits_of([twin], loaded))


def test_an_exception_in_a_closure_changes_nothing_and_the_next_step_works() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(1))
    before = bits_of([param], optimizer)

    def fails() -> float:
        raise ZeroDivisionError("inside")

    with pytest.raises(ZeroDivisionError, match="inside"):
        optimizer.step(fails)
    assert same_bits(bits_of([param], optimizer), before)
    train([param], optimizer, range(1, 2))
    assert float(optimizer.state[param]["step"]) == 2


@pytest.mark.parametrize("alone", [False, True], ids=["step", "step_param"])
def test_threads_that_step_one_optimizer_first_together_share_its_state(alone: bool) -> None:
    """Each used to make the state, and steps wrote what had been freed: the process died."""
    param = parameter(1 << 14, 64)
    for _ in range(12):
        optimizer = flash.FlashAdamW([param])
        param.grad = torch.ones_like(param)
        together, errors = threading.Barrier(4), []

        def work() -> None:
            try:
                together.wait()  # noqa: B023
                for _ in range(5):
                    optimizer.step_param(param) if alone else optimizer.step()  # noqa: B023
            except BaseException as error:
                errors.append(error)  # noqa: B023

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert 1 <= float(optimizer.state[param]["step"]) <= 20
        assert bool(param.isfinite().all())


def test_optimizers_step_in_threads_of_their_own() -> None:
    params = [parameter(64, 64, dtype=torch.bfloat16) for _ in range(4)]
    twins = [nn.Parameter(param.detach().clone()) for param in params]
    optimizers = [flash.FlashAdamW([param]) for param in params]
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            train([params[index]], optimizers[index], range(30))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for param, twin, optimizer in zip(params, twins, optimizers, strict=True):
        alone = flash.FlashAdamW([twin])
        train([twin], alone, range(30))
        assert same_bits(bits_of([param], optimizer), bits_of([twin], alone))


def test_a_learning_rate_of_zero_moves_moments_only() -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param], lr=0.0, weight_decay=0.1)
    before = param.detach().clone()
    train([param], optimizer, range(3))
    assert same_bits(before, param.detach())
    assert not optimizer.state[param]["weight_correction"].any()
    assert optimizer.state[param]["exp_avg"].any()


def test_default_devices_and_dtypes_of_torch_do_not_matter() -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param])
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            param.grad = torch.ones(4, 64, dtype=torch.bfloat16, device="cpu")
            optimizer.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.step()
            model = nn.ParameterList([param])
            weights = optimizer.get_fp32_model_state_dict(model)
            optimizer.set_fp32_model_state_dict(model, weights)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {value.device.type for value in optimizer.state[param].values()} == {"cpu"}
    assert optimizer.state[param]["step"].dtype == torch.float32


def test_steps_in_inference_mode_and_outside_go_together() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    with torch.inference_mode():
        train([param], optimizer, range(1))
    train([param], optimizer, range(1, 3))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train([param], optimizer, range(3, 4))
    assert float(optimizer.state[param]["step"]) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3.0, "'1.weight' is float"),
        (torch.zeros(4, 64, device="meta"), "'1.weight' is without dense memory"),
        (torch.zeros(4, 64).to_sparse(), "'1.weight' is without dense memory"),
    ],
    ids=["number", "meta", "sparse"],
)
def test_fp32_weights_are_checked_before_the_first_is_written(wrong: Any, message: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4)).bfloat16()
    optimizer = flash.FlashAdamW(model.parameters())
    train(list(model.parameters()), optimizer, range(1))
    before = bits_of(model.parameters(), optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.set_fp32_model_state_dict(
            model, {"0.weight": torch.zeros(64, 64), "1.weight": wrong}
        )
    assert same_bits(bits_of(model.parameters(), optimizer), before)


def test_things_of_the_wrong_type_are_refused_when_they_are_given() -> None:
    model = nn.Linear(64, 4)
    optimizer = flash.FlashAdamW(model.parameters())
    with pytest.raises(TypeError, match="step_param steps one parameter, not int"):
        optimizer.step_param(3)
    with pytest.raises(TypeError, match="a dictionary, not NoneType"):
        optimizer.set_fp32_model_state_dict(model, None)
    with pytest.raises(TypeError, match="pre_step must be a function or None, not 3"):
        flash.enable_gradient_release(model, optimizer, pre_step=3)
    with pytest.raises(TypeError, match="max_norm must be a number or None, not '1'"):
        flash.enable_gradient_release(model, optimizer, max_norm="1")
    flash.enable_gradient_release(model, optimizer).remove()


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    optimizer = flash.FlashAdamW(
        [parameter(4, 64)],
        lr=numpy.float32(0.25),
        betas=(numpy.float64(0.5), numpy.float32(0.75)),
        quantize=numpy.bool_(True),
        seed=numpy.int64(3),
    )
    train(optimizer.param_groups[0]["params"], optimizer, range(2))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", ["nested", "mkldnn"])
def test_parameters_that_are_not_dense_are_refused(layout: str) -> None:
    value = (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        if layout == "nested"
        else torch.ones(4, 64).to_mkldnn()
    )
    with pytest.raises(TypeError, match=f"parameter 0 of group 0: its layout is .*{layout}"):
        flash.FlashAdamW([nn.Parameter(value)])
