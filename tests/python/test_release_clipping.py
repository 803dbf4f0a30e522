"""Clipping by the global norm while gradients are released."""

from __future__ import annotations

import contextlib
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, same_bits
from release_common import Net, loss_of, net, train
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_

pytestmark = pytest.mark.filterwarnings("ignore:gradient release is on")

MAX_NORM = 20.0


def fp32_norm(model: nn.Module) -> torch.Tensor:
    norms = [
        torch.linalg.vector_norm(param.grad, dtype=torch.float32)
        for param in model.parameters()
        if param.grad is not None
    ]
    return torch.linalg.vector_norm(torch.stack(norms))


def released(dtype: torch.dtype, **options: Any) -> tuple[Net, flash.FlashOptimizer, Any]:
    model = net(dtype)
    optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
    handle = flash.enable_gradient_release(model, optimizer, max_norm=MAX_NORM, **options)
    return model, optimizer, handle


def measured_steps(model: Net, optimizer: Any, handle: Any, steps: range) -> list[float]:
    norms = []
    for step in steps:
        optimizer.zero_grad()
        with handle.measure():
            loss_of(model, step).backward()
        assert all(param.grad is None for param in model.parameters())
        loss_of(model, step).backward()
        optimizer.step()
        norms.append(float(handle.total_norm))
    return norms


def test_two_passes_give_the_bits_of_clip_grad_norm() -> None:
    """E1."""
    plain = net(torch.float32)
    optimizer = flash.FlashAdamW(plain.parameters(), lr=1e-2)
    norms = []
    for step in range(20):
        optimizer.zero_grad()
        loss_of(plain, step).backward()
        norms.append(float(clip_grad_norm_(plain.parameters(), MAX_NORM)))
        optimizer.step()
    assert min(norms) < MAX_NORM < max(norms)
    model, ours, handle = released(torch.float32)
    assert measured_steps(model, ours, handle, range(20)) == norms
    expected = bits_of(plain.parameters(), optimizer)
    assert same_bits(expected, bits_of(model.parameters(), ours))


def test_norms_of_16_bit_gradients_are_taken_in_fp32() -> None:
    plain = net()
    optimizer = flash.FlashAdamW(plain.parameters(), lr=1e-2)
    norms = []
    for step in range(10):
        optimizer.zero_grad()
        loss_of(plain, step).backward()
        norms.append(fp32_norm(plain))
        nn.utils.clip_grads_with_norm_(plain.parameters(), MAX_NORM, norms[-1])
        optimizer.step()
    model, ours, handle = released(torch.bfloat16)
    assert measured_steps(model, ours, handle, range(10)) == [float(norm) for norm in norms]
    expected = bits_of(plain.parameters(), optimizer)
    assert same_bits(expected, bits_of(model.parameters(), ours))


def plain_steps_with_the_norm_before(
    model: Net, optimizer: Any, steps: range, norm: torch.Tensor | None = None
) -> torch.Tensor:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        previous, norm = norm, fp32_norm(model)
        if previous is not None:
            nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, previous)
        optimizer.step()
    assert norm is not None
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_without_measuring_the_norm_of_the_step_before_clips(dtype: torch.dtype) -> None:
    plain = net(dtype)
    optimizer = flash.FlashAdamW(plain.parameters(), lr=1e-2)
    norm = plain_steps_with_the_norm_before(plain, optimizer, range(12))
    model, ours, handle = released(dtype)
    assert handle.total_norm is None
    train(model, ours, range(12))
    assert same_bits(norm, handle.total_norm)
    expected = bits_of(plain.parameters(), optimizer)
    assert same_bits(expected, bits_of(model.parameters(), ours))


def test_measuring_some_steps_only() -> None:
    model, optimizer, handle = released(torch.float32)
    plain = net(torch.float32)
    theirs = flash.FlashAdamW(plain.parameters(), lr=1e-2)
    loss_of(plain, 0).backward()
    norm = clip_grad.clip_grad_norm_(plain.parameters(), MAX_NORM)
    theirs.step()
    plain_steps_with_the_norm_before(plain, theirs, range(1, 6), norm)
    measured_steps(model, optimizer, handle, range(1))
    train(model, optimizer, range(1, 6))
    expected = bits_of(plain.parameters(), theirs)
    assert same_bits(expected, bits_of(model.parameters(), optimizer))


def test_a_resumed_run_is_given_the_last_norm() -> None:
    model, optimizer, handle = released(torch.float32)
    train(model, optimizer, range(4))
    saved = [model.state_dict(), optimizer.state_dict(), handle.total_norm]
    weights, state, norm = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.clone(), saved
    )
    train(model, optimizer, range(4, 8))
    again, fresh, other = released(torch.float32)
    again.load_state_dict(weights)
    fresh.load_state_dict(state)
    other.total_norm = float(norm)
    train(again, fresh, range(4, 8))
    assert same_bits(bits_of(model.parameters(), optimizer), bits_of(again.parameters(), fresh))


def test_a_norm_that_is_not_finite_does_not_clip_the_next_step() -> None:
    weight = nn.ParameterList([nn.Parameter(torch.zeros(4, 64))])
    optimizer = flash.FlashSGD(weight, lr=1.0, nonfinite="skip")
    handle = flash.enable_gradient_release(weight, optimizer, max_norm=8.0)

    def step(value: float) -> None:
        (weight[0].sum() * value).backward()
        optimizer.step()

    step(1.0)  # of norm 16
    step(float("nan"))
    assert not bool(handle.total_norm.isfinite())
    assert optimizer.skipped_tensors == 1
    step(1.0)
    torch.testing.assert_close(weight[0].detach(), torch.full((4, 64), -1.5))
    assert float(handle.total_norm) == 16.0


def test_complex_gradients_count_as_two_reals() -> None:
    weight = nn.ParameterList([nn.Parameter(torch.zeros(4, 64, dtype=torch.complex64))])
    optimizer = flash.FlashSGD(weight, lr=1.0)
    handle = flash.enable_gradient_release(weight, optimizer, max_norm=1.0)
    torch.view_as_real(weight[0]).sum().backward()
    optimizer.step()
    assert float(handle.total_norm) == pytest.approx(512**0.5)


def test_infinity_measures_without_clipping() -> None:
    plain, model = net(), net()
    optimizers = [flash.FlashAdamW(m.parameters(), 1e-2) for m in (plain, model)]
    handle = flash.enable_gradient_release(model, optimizers[1], max_norm=float("inf"))
    for m, optimizer in zip((plain, model), optimizers, strict=True):
        train(m, optimizer, range(4))
    assert float(handle.total_norm) == float(fp32_norm(plain))
    assert same_bits(*map(bits_of, (plain.parameters(), model.parameters()), optimizers))


def test_measuring_wrongly_is_refused() -> None:
    model, optimizer, handle = released(torch.float32)
    before = bits_of(model.parameters(), optimizer)
    with pytest.raises(RuntimeError, match="no gradient was measured"), handle.measure():
        pass
    with handle.measure():
        loss_of(model, 0).backward()
        with pytest.raises(RuntimeError, match="got a second gradient while measuring"):
            loss_of(model, 1).backward()
    optimizer.zero_grad()
    interrupted_measurement(model, handle)
    assert same_bits(before, bits_of(model.parameters(), optimizer))
    train(model, optimizer, range(1))
    assert float(handle.total_norm) == float(released_norm_of_first_step())
    handle.remove()
    with pytest.raises(RuntimeError, match="has been removed"):
        handle.measure()
    handle = flash.enable_gradient_release(model, optimizer)
    with pytest.raises(RuntimeError, match=r"measure\(\) needs max_norm"):
        handle.measure()
    with pytest.raises(RuntimeError, match="total_norm needs max_norm"):
        _ = handle.total_norm


def interrupted_measurement(model: nn.Module, handle: Any) -> None:
    with contextlib.suppress(ZeroDivisionError), handle.measure():
        loss_of(model, 0).backward()
        raise ZeroDivisionError


def released_norm_of_first_step() -> torch.Tensor:
    model, optimizer, handle = released(torch.float32)
    train(model, optimizer, range(1))
    norm: torch.Tensor = handle.total_norm
    return norm


CLIPS: dict[str, Any] = {
    "nn.utils.clip_grad_norm_": lambda p: nn.utils.clip_grad_norm_(p, 1.0),
    "imported before": lambda p: clip_grad_norm_(p, 1.0),
    "of one parameter": lambda p: nn.utils.clip_grad_norm_(next(iter(p)), 1.0),
    "by keyword": lambda p: nn.utils.clip_grad_norm_(max_norm=1.0, parameters=p),
    "of the module": lambda p: clip_grad.clip_grad_norm_(p, 1.0),
    "values": lambda p: nn.utils.clip_grad_value_(p, 1.0),
    "with a norm": lambda p: nn.utils.clip_grads_with_norm_(p, 1.0, torch.tensor(2.0)),
}


@pytest.mark.parametrize("clip", CLIPS)
def test_clipping_as_torch_does_is_refused(clip: str) -> None:
    """E1."""
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    with flash.enable_gradient_release(model, optimizer):
        loss_of(model, 0).backward()
        with pytest.raises(RuntimeError, match=r"clip_grad\S+ has no gradient of '\S+'.*max_norm="):
            CLIPS[clip](model.parameters())


def test_clipping_others_works_and_all_is_as_before_after_removing() -> None:
    functions = (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_, clip_grad.clip_grad_norm_)
    models, handles, optimizers = [net(), net()], [], []
    for model in models:
        optimizers.append(flash.FlashAdamW(model.parameters()))
        handles.append(flash.enable_gradient_release(model, optimizers[-1]))
    other = nn.Linear(4, 4)
    other(torch.ones(2, 4)).sum().backward()
    expected = fp32_norm(other)
    assert float(nn.utils.clip_grad_norm_(other.parameters(), 1.0)) == float(expected)
    assert float(fp32_norm(other)) == pytest.approx(1.0)
    clip_grad_value_(other.parameters(), 0.1)
    with pytest.warns(UserWarning, match="empty generator"):
        nn.utils.clip_grad_norm_((p for p in ()), 1.0)
    handles[0].remove()
    loss_of(models[0], 0).backward()
    nn.utils.clip_grad_norm_(models[0].parameters(), 1.0)
    with pytest.raises(RuntimeError, match="has no gradient"):
        nn.utils.clip_grad_norm_(models[1].parameters(), 1.0)
    optimizers.clear()  # without removing
    handles.clear()
    assert functions == (
        nn.utils.clip_grad_norm_,
        nn.utils.clip_grad_value_,
        clip_grad.clip_grad_norm_,
    )
    assert clip_grad.clip_grad_norm_ is clip_grad_norm_
