"""What gradient release refuses, and what an error in the backward pass leaves behind."""

from __future__ import annotations

from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, parameter, same_bits
from release_common import loss_of, net, train
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:gradient release is on")


def test_release_can_be_enabled_again_after_removing_but_not_twice() -> None:
    """E5."""
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    handle = flash.enable_gradient_release(model, optimizer)
    with pytest.raises(RuntimeError, match="on already for this optimizer"):
        flash.enable_gradient_release(model, optimizer)
    other = flash.FlashAdamW(model.parameters())
    with pytest.raises(RuntimeError, match=r"'embedding.weight' is released by another optimizer"):
        flash.enable_gradient_release(model, other)
    handle.remove()
    flash.enable_gradient_release(model, other)
    train(model, other, range(1))
    assert float(other.state[model.norm.weight]["step"]) == 1


def test_a_second_backward_pass_in_a_step_is_refused_before_it_changes_anything() -> None:
    """E2."""
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    flash.enable_gradient_release(model, optimizer)
    loss_of(model, 0).backward()
    before = bits_of(model.parameters(), optimizer)
    with pytest.raises(RuntimeError, match=r"parameter '\S+' got a second gradient.*accumulate="):
        loss_of(model, 1).backward()
    assert same_bits(before, bits_of(model.parameters(), optimizer))
    for begin in (optimizer.zero_grad, optimizer.step):
        optimizer.zero_grad()
        loss_of(model, 2).backward()
        begin()
        loss_of(model, 3).backward()
        optimizer.zero_grad()
    assert float(optimizer.state[model.norm.weight]["step"]) == 5


def test_errors_leave_the_parameter_alone_and_those_before_it_stepped() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = flash.FlashAdamW(model.parameters(), nonfinite="error")
    flash.enable_gradient_release(model, optimizer)
    before = [param.detach().clone() for param in model.parameters()]
    broken = model[0].weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(RuntimeError, match=r"parameter '0.weight'.*NaN or an infinity"):
        model(torch.ones(2, 64)).sum().backward()
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert changed == [False, changed[1], True, True]
    broken.remove()
    optimizer.zero_grad()
    model(torch.ones(2, 64)).sum().backward()
    steps = [float(optimizer.state[module.weight]["step"]) for module in model]
    assert steps == [1, 2]


def test_skipped_tensors_are_counted() -> None:
    model = nn.Linear(64, 64)
    optimizer = flash.FlashAdamW(model.parameters(), nonfinite="skip")
    flash.enable_gradient_release(model, optimizer)
    model.weight.register_hook(lambda gradient: gradient * float("nan"))
    before = model.weight.detach().clone()
    model(torch.ones(2, 64)).sum().backward()
    assert optimizer.skipped_tensors == 1
    assert same_bits(before, model.weight.detach())
    assert model.weight.grad is None


def test_numerics_are_checked() -> None:
    model = net()
    optimizer = flash.FlashAdamW(
        model.parameters(), lr=1e-9, stochastic_rounding=False, check_numerics=True
    )
    flash.enable_gradient_release(model, optimizer)
    with pytest.raises(flash.NumericsError, match="parameter '"):
        loss_of(model, 0).backward()


def test_sparse_gradients_are_refused_before_anything_is_written() -> None:
    model = nn.Sequential(nn.Embedding(8, 64, sparse=True), nn.Linear(64, 64))
    optimizer = flash.FlashAdamW(model.parameters())
    with pytest.raises(RuntimeError, match=r"module '0' has sparse gradients.*sparse=False"):
        flash.enable_gradient_release(model, optimizer)
    assert not model[1].weight._post_accumulate_grad_hooks
    with pytest.raises(ValueError, match="no parameter of this model"):
        flash.enable_gradient_release(model, flash.FlashAdamW([parameter(2)]))
    weight = nn.ParameterList([parameter(8, 64)])
    functional = flash.FlashAdamW(weight)
    flash.enable_gradient_release(weight, functional, max_norm=1.0)
    before = bits_of(weight, functional)
    rows = nn.functional.embedding(torch.arange(3), weight[0], sparse=True)
    with pytest.raises(RuntimeError, match="parameter '0': its gradient is sparse"):
        rows.sum().backward()
    assert same_bits(before, bits_of(weight, functional))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_norm": 0.0}, ValueError, "max_norm must be above 0"),
        ({"max_norm": float("nan")}, ValueError, "max_norm must be above 0"),
        ({"accumulate": 0}, ValueError, "at least 1"),
        ({"accumulate": 2.0}, ValueError, "at least 1"),
        ({"accumulate_dtype": torch.bfloat16, "accumulate": 2}, ValueError, "float32 or None"),
        ({"accumulate_dtype": torch.float32}, ValueError, "needs accumulate"),
        (
            {"accumulate_dtype": torch.float32, "accumulate": 2, "pre_step": lambda *_: True},
            ValueError,
            "use one of them",
        ),
        ({"grad_scaler": 65536.0}, TypeError, "must be a GradScaler, not float"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    with pytest.raises(error, match=message):
        flash.enable_gradient_release(model, optimizer, **options)
    flash.enable_gradient_release(model, optimizer).remove()


def test_other_optimizers_and_things_that_are_no_models_are_refused() -> None:
    model = net()
    with pytest.raises(TypeError, match="not AdamW"):
        flash.enable_gradient_release(model, torch.optim.AdamW(model.parameters()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, not list"):
        flash.enable_gradient_release(  # type: ignore[arg-type]
            list(model.parameters()), flash.FlashAdamW(model.parameters())
        )
