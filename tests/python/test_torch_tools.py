"""Schedulers, weight averaging and hooks of torch, with gradient release and without."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, same_bits
from release_common import loss_of, net, train
from test_torch_integration import SCHEDULERS
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.optim import lr_scheduler as schedulers
from torch.optim import swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

RELEASED = pytest.mark.parametrize("release", [False, True])
pytestmark = pytest.mark.filterwarnings("ignore:gradient release is on")

WITH_A_METRIC: dict[str, Callable[[Any], Any]] = {
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=3),
}


def model_and_optimizer(release: bool, **options: Any) -> tuple[nn.Module, flash.FlashOptimizer]:
    model = net()
    optimizer = flash.FlashAdamW(model.parameters(), **options)
    if release:
        flash.enable_gradient_release(model, optimizer)
    return model, optimizer


def test_no_scheduler_of_torch_is_forgotten() -> None:
    found = {
        name
        for module in (schedulers, swa_utils)
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, schedulers.LRScheduler)
        and not name.startswith("_")
    }
    tested = {name.split()[0] for name in (*SCHEDULERS, *WITH_A_METRIC)}
    assert found - {"LRScheduler"} == tested


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [*SCHEDULERS, *WITH_A_METRIC])
def test_every_scheduler_drives_released_steps_and_resumes(name: str) -> None:
    make = {**SCHEDULERS, **WITH_A_METRIC}[name]
    results = []
    for release, resume in ((False, False), (True, False), (True, True)):
        model, optimizer = model_and_optimizer(release)
        scheduler = make(optimizer)
        rates = []
        for step in range(6):
            if resume and step == 3:
                saved = model.state_dict(), optimizer.state_dict(), scheduler.state_dict()
                model, optimizer = model_and_optimizer(release)
                scheduler = make(optimizer)
                for part, state in zip((model, optimizer, scheduler), saved, strict=True):
                    part.load_state_dict(state)
            train(model, optimizer, range(step, step + 1))
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            rates.append(float(optimizer.param_groups[0]["lr"]))
        results.append((rates, bits_of(model.parameters(), optimizer)))
    assert len(set(results[0][0])) > 1
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


@RELEASED
def test_averages_follow_the_weights_that_the_model_has(release: bool) -> None:
    model, optimizer = model_and_optimizer(release, lr=1e-2)
    mean = swa_utils.AveragedModel(model)
    decaying = swa_utils.AveragedModel(
        model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.75), use_buffers=True
    )
    seen = []
    for step in range(4):
        train(model, optimizer, range(step, step + 1))
        mean.update_parameters(model)
        decaying.update_parameters(model)
        seen.append([param.detach().float() for param in model.parameters()])
    for i, (average, ema) in enumerate(zip(mean.parameters(), decaying.parameters(), strict=True)):
        weights = [step[i] for step in seen]
        torch.testing.assert_close(average.float(), sum(weights) / 4, rtol=0.02, atol=0.002)
        expected = weights[0]
        for weight in weights[1:]:
            expected = 0.75 * expected + 0.25 * weight
        torch.testing.assert_close(ema.float(), expected, rtol=0.02, atol=0.002)
    before = bits_of(model.parameters(), optimizer)
    loss_of(mean, 9).backward()  # a copy: nothing is stepped
    assert same_bits(before, bits_of(model.parameters(), optimizer))


def test_an_average_of_master_weights_keeps_what_16_bits_lose() -> None:
    model, optimizer = model_and_optimizer(True, lr=1e-5)
    average = swa_utils.AveragedModel(net(torch.float32), avg_fn=swa_utils.get_ema_avg_fn(0.5))
    exact = net(torch.float32)
    for step in range(3):
        train(model, optimizer, range(step, step + 1))
        exact.load_state_dict(optimizer.get_fp32_model_state_dict(model))
        average.update_parameters(exact)
    narrow = model.twice.weight.detach().float()
    apart = (average.module.twice.weight - exact.twice.weight).detach().abs().max()
    assert 0 < float(apart) < float((narrow - exact.twice.weight.detach()).abs().max())


@RELEASED
def test_hooks_of_step_and_of_state_dicts(release: bool) -> None:
    model, optimizer = model_and_optimizer(release)
    calls: list[str] = []
    names = (
        "step_pre",
        "step_post",
        "state_dict_pre",
        "state_dict_post",
        "load_state_dict_pre",
        "load_state_dict_post",
    )
    handles = []
    for name in names:
        register = getattr(optimizer, f"register_{name}_hook")
        handles.append(register(lambda *_, name=name: calls.append(name)))
    everywhere = register_optimizer_step_post_hook(lambda *_: calls.append("global"))
    train(model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    everywhere.remove()
    assert calls == [names[0], names[1], "global", *names[2:]]
    for handle in handles:
        handle.remove()
    train(model, optimizer, range(1, 2))
    assert len(calls) == 7


def test_a_step_hook_may_change_the_arguments() -> None:
    optimizer = model_and_optimizer(False)[1]
    optimizer.register_step_pre_hook(lambda *_: ((optimizer, lambda: 3.0), {}))
    loss: float | None = optimizer.step()
    assert loss == 3.0


def test_a_closure_may_register_hooks() -> None:
    optimizer, calls = model_and_optimizer(False)[1], []

    def closure() -> float:
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        return 3.0

    optimizer.step(closure)
    assert calls == ["after"]


@pytest.mark.parametrize("all_threads", [False, True])
def test_profilers_see_a_step_by_its_name(all_threads: bool) -> None:
    model, optimizer = model_and_optimizer(False)
    train(model, optimizer, range(1))
    config = _ExperimentalConfig(profile_all_threads=all_threads)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiler:
        train(model, optimizer, range(1, 3))
    marks = [event for event in profiler.events() if event.name.startswith("Optimizer.step#")]
    assert {mark.name for mark in marks} == {f"Optimizer.step#{type(optimizer).__name__}.step"}
    assert len(marks) == 2


def test_a_step_hook_may_change_the_gradients_of_a_plain_step_only() -> None:
    for release in (False, True):
        model, optimizer = model_and_optimizer(release, lr=1e-2)
        seen: list[int] = []

        def hook(optimizer: Any, *_: Any, seen: list[int] = seen) -> None:
            params = [param for group in optimizer.param_groups for param in group["params"]]
            seen.append(sum(param.grad is not None for param in params))

        optimizer.register_step_pre_hook(hook)
        train(model, optimizer, range(1))
        assert seen == [0 if release else 7]
