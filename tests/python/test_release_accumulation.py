"""Micro-batches and GradScaler while gradients are released."""

from __future__ import annotations

from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, master, same_bits
from release_common import Net, loss_of, net
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:gradient release is on")

PARTS = 4


def plain_steps(model: Net, optimizer: Any, steps: int, wide: bool) -> None:
    """Accumulates in ``.grad``, or in fp32 tensors that are stepped in its place."""
    for step in range(steps):
        sums: list[Tensor] = []
        for part in range(PARTS):
            (loss_of(model, PARTS * step + part) / PARTS).backward()
            if wide:
                gradients = [param.grad.float() for param in model.parameters()]
                sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
                optimizer.zero_grad()
        for param, total in zip(model.parameters(), sums, strict=False):
            param.grad_dtype = torch.float32
            param.grad = total
        optimizer.step()
        optimizer.zero_grad()
        for param in model.parameters():
            param.grad_dtype = param.dtype


@pytest.mark.parametrize("wide", [False, True])
def test_micro_batches_are_stepped_as_one_with_the_last(wide: bool) -> None:
    """E2."""
    if wide and not hasattr(Tensor, "grad_dtype"):
        pytest.skip("this torch cannot give a 16-bit parameter a fp32 gradient")
    results = []
    for release in (False, True):
        model = net()
        optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
        if not release:
            plain_steps(model, optimizer, 5, wide)
        else:
            dtype = torch.float32 if wide else None
            flash.enable_gradient_release(
                model, optimizer, accumulate=PARTS, accumulate_dtype=dtype
            )
            for part in range(5 * PARTS):
                (loss_of(model, part) / PARTS).backward()
                last = part % PARTS == PARTS - 1
                kept = [param.grad is None for param in model.parameters()]
                assert all(kept) == (wide or last)
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
        results.append(bits_of(model.parameters(), optimizer))
    assert same_bits(*results)


def test_sums_of_small_gradients_are_kept_in_fp32_only() -> None:
    moved = []
    for dtype in (None, torch.float32):
        weight = nn.ParameterList([nn.Parameter(torch.zeros(4, 64, dtype=torch.bfloat16))])
        optimizer = flash.FlashSGD(weight, lr=1.0, master_weight_bits=32)
        flash.enable_gradient_release(weight, optimizer, accumulate=3, accumulate_dtype=dtype)
        for gradient in (1.0, 2.0**-9, 2.0**-9):
            (weight[0].sum() * gradient).backward()
        moved.append(float(master(weight[0], optimizer)[0, 0]))
        assert float(optimizer.state[weight[0]]["step"]) == 1
    assert moved == [-1.0, -1.0 - 2.0**-8]


@pytest.mark.parametrize("dtype", [None, torch.float32], ids=str)
def test_parameters_with_fewer_gradients_and_short_last_batches_are_stepped_by_step(
    dtype: torch.dtype | None,
) -> None:
    results = []
    for release in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(2)])
        optimizer = flash.FlashAdamW(model.parameters())
        if release:
            flash.enable_gradient_release(model, optimizer, accumulate=3, accumulate_dtype=dtype)
        for parts in (3, 2, 3):
            for part in range(parts):
                x = model[0](torch.full((2, 64), 1.0 + part))
                (model[1](x) if part != 1 else x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(bits_of(model.parameters(), optimizer))
        assert {float(state["step"]) for state in optimizer.state.values()} == {3.0}
    assert same_bits(*results)


def test_zero_grad_drops_what_was_accumulated() -> None:
    for dtype in (None, torch.float32):
        results = []
        for dropped in (0, 1):
            model = net()
            optimizer = flash.FlashAdamW(model.parameters())
            flash.enable_gradient_release(model, optimizer, accumulate=2, accumulate_dtype=dtype)
            for part in range(dropped):
                loss_of(model, part).backward()
            optimizer.zero_grad()
            for part in (5, 6):
                loss_of(model, part).backward()
            results.append(bits_of(model.parameters(), optimizer))
        assert same_bits(*results)


def test_one_micro_batch_too_many_is_refused_and_removing_keeps_sums() -> None:
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    options = {"accumulate": 2, "accumulate_dtype": torch.float32}
    handle = flash.enable_gradient_release(model, optimizer, **options)
    for part in range(2):
        loss_of(model, part).backward()
    with pytest.raises(RuntimeError, match="got 3 gradients since the last"):
        loss_of(model, 2).backward()
    optimizer.zero_grad()
    loss_of(model, 3).backward()
    assert model.norm.weight.grad is None
    handle.remove()
    removed = [param.grad for param in model.parameters()]
    twin = net()
    twin.load_state_dict(model.state_dict())
    loss_of(twin, 3).backward()
    assert same_bits(removed, [param.grad for param in twin.parameters()])


def test_sums_are_clipped_by_the_norm_of_the_sum_before() -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(4, 64))])
    optimizer = flash.FlashSGD(model, lr=1.0)
    handle = flash.enable_gradient_release(model, optimizer, accumulate=2, max_norm=16.0)
    for part in range(4):
        model[0].sum().backward()
        if part % 2:
            optimizer.step()
    assert float(handle.total_norm) == 32.0
    torch.testing.assert_close(model[0].detach(), torch.full((4, 64), -3.0))
    with pytest.raises(RuntimeError, match="of no use with accumulate"):
        handle.measure()


def scaled_model(dtype: torch.dtype) -> tuple[nn.Sequential, flash.FlashOptimizer, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).to(dtype)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    return model, flash.FlashSGD(model.parameters(), lr=0.1, momentum=0.9), scaler


def scaled_loss(model: nn.Module, step: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(step)).to(dtype)
    return model(x).float().square().mean()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_gradient_scaler_unscales_as_without_release(dtype: torch.dtype) -> None:
    results = []
    for release in (False, True):
        model, optimizer, scaler = scaled_model(dtype)
        if release:
            flash.enable_gradient_release(model, optimizer, grad_scaler=scaler)
        scales = []
        for step in range(7):
            optimizer.zero_grad()
            scaler.scale(scaled_loss(model, step, dtype)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales[-1] == 8192.0
        results.append([scales, bits_of(model.parameters(), optimizer)])
    assert same_bits(*results)


def test_parameters_without_a_finite_gradient_are_left_alone_and_the_scale_falls() -> None:
    model, optimizer, scaler = scaled_model(torch.float16)
    flash.enable_gradient_release(model, optimizer, grad_scaler=scaler)
    broken = model[0].weight.register_hook(lambda gradient: gradient * float("inf"))
    before = [param.detach().clone() for param in model.parameters()]
    scaler.scale(scaled_loss(model, 0, torch.float16)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert optimizer.skipped_tensors == 1
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert changed == [False, True, True, True]
    broken.remove()
    for step in (1, 2):
        scaler.scale(scaled_loss(model, step, torch.float16)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 1024.0
    assert [float(optimizer.state[p]["step"]) for p in model.parameters()] == [2, 3, 3, 3]


def test_after_measuring_a_step_without_finite_gradients_changes_nothing_at_all() -> None:
    results = []
    for release in (False, True):
        model, optimizer, scaler = scaled_model(torch.float32)
        handle = None
        if release:
            handle = flash.enable_gradient_release(
                model, optimizer, grad_scaler=scaler, max_norm=0.5
            )
        trace = []
        for step in range(6):
            factor = float("inf") if step in (0, 3) else 1.0
            hook = model[0].weight.register_hook(lambda gradient, by=factor: gradient * by)
            optimizer.zero_grad()
            if handle is not None:
                with handle.measure():
                    scaler.scale(scaled_loss(model, step, torch.float32)).backward()
            scaler.scale(scaled_loss(model, step, torch.float32)).backward()
            if handle is None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            hook.remove()
            trace.append((scaler.get_scale(), bits_of(model.parameters(), optimizer)))
        assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}
        results.append(trace)
    assert same_bits(*results)


def test_a_gradient_scaler_that_release_does_not_know_is_refused() -> None:
    model, optimizer, scaler = scaled_model(torch.float32)
    handle = flash.enable_gradient_release(model, optimizer)
    scaler.scale(scaled_loss(model, 0, torch.float32)).backward()
    with pytest.raises(RuntimeError, match="grad_scaler=scaler"):
        scaler.step(optimizer)
    handle.remove()
    before = model[2].bias.detach().clone()
    scaled_loss(model, 1, torch.float32).backward()
    gradient = model[2].bias.grad.clone()
    momentum = optimizer.state[model[2].bias]["momentum_buffer"].clone()
    optimizer.step()  # not divided by the scale that GradScaler has left
    torch.testing.assert_close(
        model[2].bias.detach(), before - 0.1 * (0.9 * momentum + gradient), rtol=1e-5, atol=1e-6
    )


def test_a_gradient_scaler_that_is_off_changes_nothing() -> None:
    model, optimizer, _ = scaled_model(torch.float32)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    flash.enable_gradient_release(model, optimizer, grad_scaler=scaler)
    scaler.scale(scaled_loss(model, 0, torch.float32)).backward()
    scaler.step(optimizer)
    scaler.update()
    twin, plain, _ = scaled_model(torch.float32)
    scaled_loss(twin, 0, torch.float32).backward()
    plain.step()
    assert same_bits(bits_of(model.parameters(), optimizer), bits_of(twin.parameters(), plain))


def test_policies_and_parameters_outside_the_model_with_a_gradient_scaler() -> None:
    model, _, scaler = scaled_model(torch.float32)
    other = nn.Parameter(torch.zeros(64))
    optimizer = flash.FlashSGD([*model.parameters(), other], lr=1.0, nonfinite="error")
    flash.enable_gradient_release(model, optimizer, grad_scaler=scaler)
    scaler.scale(scaled_loss(model, 0, torch.float32) + other.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert bool((other == -1.0).all())
    hook = model[2].weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(RuntimeError, match="holds NaN or an infinity"):
        scaler.scale(scaled_loss(model, 1, torch.float32)).backward()
    hook.remove()
    capturable = flash.FlashSGD(model.parameters(), capturable=True)
    with pytest.raises(ValueError, match="capturable=True rules out"):
        flash.enable_gradient_release(model, capturable, grad_scaler=scaler)
