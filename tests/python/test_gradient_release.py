"""Gradient release gives the weights of plain training, whatever the model looks like."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, STORAGES, bits_of, parameter, same_bits, set_gradients
from release_common import Net, loss_of, net, train, two_groups
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:gradient release is on")


def both_ways(
    make_model: Any = net, make: Any = flash.FlashAdamW, steps: int = 8, loop: Any = train
) -> Iterator[list[Any]]:
    """Bits after training without release and with it."""
    for release in (False, True):
        model = make_model()
        optimizer = make(model)
        if release:
            flash.enable_gradient_release(model, optimizer)
        loop(model, optimizer, range(steps))
        if release:
            assert all(param.grad is None for param in model.parameters())
        yield bits_of(model.parameters(), optimizer)


@pytest.mark.parametrize("bits", [24, 32])
@pytest.mark.parametrize("rule", RULES)
def test_fifty_steps_give_the_bits_of_plain_training(rule: str, bits: int) -> None:
    make, options = RULES[rule]

    def optimizer_of(model: Net) -> flash.FlashOptimizer:
        return make(two_groups(model), **{**options, "lr": 1e-2, "master_weight_bits": bits})

    def loop(model: Net, optimizer: flash.FlashOptimizer, steps: range) -> None:
        train(model, optimizer, steps, schedulers.OneCycleLR(optimizer, 1e-2, total_steps=60))

    if rule in ("sgd", "adamw-amsgrad"):  # OneCycleLR wants momentum or betas to cycle

        def loop(model: Net, optimizer: flash.FlashOptimizer, steps: range) -> None:
            train(model, optimizer, steps, schedulers.CosineAnnealingLR(optimizer, 50))

    plain, released = both_ways(make=optimizer_of, steps=50, loop=loop)
    assert same_bits(plain, released)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("storage", STORAGES)
def test_every_storage_and_weight_dtype(storage: str, dtype: torch.dtype) -> None:
    plain, released = both_ways(
        lambda: net(dtype), lambda m: flash.FlashAdamW(m.parameters(), 1e-2, **STORAGES[storage])
    )
    assert same_bits(plain, released)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 64)
            self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
            self.head = nn.Linear(64, 32)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant).tanh()
            return self.head(x)

    def make_model() -> nn.Module:
        torch.manual_seed(0)
        return flash.cast_model(Checkpointed()) or Checkpointed()

    plain, released = both_ways(make_model, lambda m: flash.FlashAdamW(m.parameters(), 1e-2))
    assert same_bits(plain, released)


def test_compiled_models() -> None:
    def make_model() -> Any:
        torch.compiler.reset()
        return torch.compile(net(torch.float32), backend="aot_eager")

    plain, released = both_ways(make_model, lambda m: flash.FlashAdamW(m.parameters()), steps=3)
    assert same_bits(plain, released)


@pytest.mark.parametrize("options", [{}, {"max_norm": 0.1}, {"accumulate": 2}], ids=str)
def test_compiled_backward_passes(options: dict[str, Any]) -> None:
    """Compiled autograd calls the hooks between its graphs, and does not trace them."""
    results = []
    for compiled in (False, True):
        torch.compiler.reset()
        model = net()
        optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
        flash.enable_gradient_release(model, optimizer, **options)
        for step in range(4):
            how = torch.compile(backend="eager")
            with torch._dynamo.compiled_autograd._enable(how) if compiled else nullcontext():
                loss_of(model, step).backward()
            released = (step + 1) % options.get("accumulate", 1) == 0
            assert all((param.grad is None) == released for param in model.parameters())
            if released:
                optimizer.step()
                optimizer.zero_grad()
        results.append(bits_of(list(model.parameters()), optimizer))
    torch.compiler.reset()
    assert same_bits(*results)


def test_mostly_frozen_models_train_their_adapters_only() -> None:
    """E6."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(64, 4, bias=False)
            self.up = nn.Linear(4, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.up(self.down(x))

    def make_model() -> nn.Module:
        model = net()
        model.requires_grad_(False)
        model.twice = Adapted(model.twice).to(torch.bfloat16)
        return model

    def loop(model: nn.Module, optimizer: Any, steps: range) -> None:
        train(model, optimizer, steps)
        assert len(optimizer.state) == 2

    plain, released = both_ways(make_model, lambda m: flash.FlashAdamW(m.parameters()), loop=loop)
    assert same_bits(plain, released)


def test_several_optimizers_on_one_model() -> None:
    results = []
    for release in (False, True):
        model = net()
        matrices, vectors = (group["params"] for group in two_groups(model))
        first, second = flash.FlashLion(matrices, 1e-3), flash.FlashAdamW(vectors)
        if release:
            for optimizer in (first, second):
                flash.enable_gradient_release(model, optimizer)
        for step in range(5):
            loss_of(model, step).backward()
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
        results.append([bits_of(matrices, first), bits_of(vectors, second)])
    assert same_bits(*results)


def test_parameters_that_only_the_model_or_only_the_optimizer_has() -> None:
    results = []
    for release in (False, True):
        model, other = net(), parameter(4, 64)
        weights = [model.twice.weight, other]
        optimizer = flash.FlashSGD(weights, lr=0.1)
        if release:
            flash.enable_gradient_release(model, optimizer)
        for step in range(3):
            model.zero_grad()
            optimizer.zero_grad()
            (loss_of(model, step) + other.square().sum()).backward()
            assert (model.twice.weight.grad is None) == release
            assert other.grad is not None
            assert model.norm.weight.grad is not None
            optimizer.step()
        results.append(bits_of(weights, optimizer))
    assert same_bits(*results)


def test_groups_and_parameters_added_or_thawed_later_are_stepped_by_step() -> None:
    results = []
    for release in (False, True):
        model = net()
        model.norm.requires_grad_(False)
        optimizer = flash.FlashAdamW([model.twice.weight, model.norm.weight])
        if release:
            flash.enable_gradient_release(model, optimizer)
        train(model, optimizer, range(2))
        model.norm.requires_grad_(True)
        optimizer.add_param_group({"params": [model.norm.bias], "lr": 0.1})
        train(model, optimizer, range(2, 4))
        results.append(bits_of(model.parameters(), optimizer))
        assert float(optimizer.state[model.norm.bias]["step"]) == 2
    assert same_bits(*results)


def test_options_state_and_groups_changed_between_steps_are_followed() -> None:
    results = []
    for release in (False, True):
        model = net()
        optimizer = flash.FlashAdamW(two_groups(model))
        if release:
            flash.enable_gradient_release(model, optimizer)
        train(model, optimizer, range(2))
        optimizer.param_groups[0]["quantize"] = False
        optimizer.param_groups[1]["betas"] = (0.5, 0.9)
        train(model, optimizer, range(2, 4))
        optimizer.param_groups.reverse()
        model.twice.weight.data = model.twice.weight.data.clone()
        del optimizer.state[model.norm.weight]
        train(model, optimizer, range(4, 6))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(model, optimizer, range(6, 8))
        moved = optimizer.param_groups[1]["params"].pop(0)
        train(model, optimizer, range(8, 10))
        results.append(bits_of(model.parameters(), optimizer))
        assert moved.grad is not None  # nobody's now
    assert same_bits(*results)


def test_a_closure_runs_the_backward_pass_that_steps() -> None:
    results = []
    for release in (False, True):
        model = net()
        optimizer = flash.FlashAdamW(model.parameters())
        if release:
            flash.enable_gradient_release(model, optimizer)

        def closure(model: Net = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        results.append((losses, bits_of(model.parameters(), optimizer)))
    assert same_bits(*results)


def test_removing_goes_back_to_plain_training() -> None:
    results = []
    for release in (False, True):
        model = net()
        optimizer = flash.FlashAdamW(model.parameters())
        if release:
            with flash.enable_gradient_release(model, optimizer) as handle:
                assert handle.active
                train(model, optimizer, range(3))
            assert not handle.active
            handle.remove()
            assert all(not param._post_accumulate_grad_hooks for param in model.parameters())
        else:
            train(model, optimizer, range(3))
        train(model, optimizer, range(3, 6))
        assert model.norm.weight.grad is not None
        results.append(bits_of(model.parameters(), optimizer))
    assert same_bits(*results)


def test_step_and_zero_grad_say_once_what_they_do() -> None:
    for first in ("step", "zero_grad"):
        model = net()
        optimizer = flash.FlashAdamW(model.parameters())
        flash.enable_gradient_release(model, optimizer)
        with pytest.warns(UserWarning, match="gradient release is on"):
            getattr(optimizer, first)()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(model, optimizer, range(2))


def test_step_hooks_run_when_step_is_called() -> None:
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    flash.enable_gradient_release(model, optimizer)
    seen: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append([float(s["step"]) for s in optimizer.state.values()])
    )
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(model, optimizer, range(2))
    assert seen == [[1.0] * 7, "after", [2.0] * 7, "after"]


def test_pre_step_may_refuse_a_step_or_take_the_gradient() -> None:
    model = net()
    optimizer = flash.FlashAdamW(two_groups(model))
    calls = []

    def pre_step(param: torch.Tensor, group: dict[str, Any]) -> bool:
        calls.append(param)
        assert param.grad is not None
        assert any(param is other for other in group["params"])
        if param is model.norm.weight:
            param.grad = None
        return param is not model.norm.bias

    flash.enable_gradient_release(model, optimizer, pre_step=pre_step)
    train(model, optimizer, range(2))
    assert len(calls) == 14
    stepped = {id(param) for param, state in optimizer.state.items() if float(state["step"]) == 2}
    left = {id(model.norm.weight), id(model.norm.bias)}
    assert stepped == {id(param) for param in model.parameters()} - left
    assert all(param.grad is None for param in model.parameters())


def test_copies_train_plainly() -> None:
    """B18."""
    for steps in (0, 3):
        model = net()
        optimizer = flash.FlashAdamW(model.parameters())
        handle = flash.enable_gradient_release(model, optimizer)
        train(model, optimizer, range(steps))
        expected = bits_of(model.parameters(), optimizer)
        file = io.BytesIO()
        torch.save([model, optimizer], file)
        file.seek(0)
        copies = [
            copy.deepcopy((model, optimizer)),
            pickle.loads(pickle.dumps((model, optimizer))),
            torch.load(file, weights_only=False),
        ]
        for twin, plain in copies:
            assert same_bits(expected, bits_of(twin.parameters(), plain))
            train(twin, plain, range(steps, steps + 2))
            assert twin.norm.weight.grad is not None
        train(model, optimizer, range(steps, steps + 2))
        for twin, plain in copies:
            bits = bits_of(twin.parameters(), plain)
            assert same_bits(bits, bits_of(model.parameters(), optimizer))
        for make_copy in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="enable_gradient_release on them"):
                make_copy(handle)


def test_gradients_set_by_hand_are_stepped_by_step() -> None:
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    flash.enable_gradient_release(model, optimizer)
    set_gradients(model.parameters(), 0)
    optimizer.step()
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}
    assert all(param.grad is None for param in model.parameters())
