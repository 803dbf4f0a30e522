"""The optimizers among tools of torch: schedulers, closures, hooks, groups, scaling."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, bits_of, mixed_parameters, parameter, same_bits, set_gradients, train
from flashoptim_cpp import _plan
from torch import nn
from torch.optim import lr_scheduler as schedulers

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: schedulers.LinearLR(o),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 10),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-4, 1e-2, step_size_up=2, cycle_momentum=False),
    "CyclicLR with momentum": lambda o: schedulers.CyclicLR(o, 1e-4, 1e-2, step_size_up=2),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 1e-2, total_steps=10),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)]
    ),
}


def losses_of_steps(optimizer: Any, param: nn.Parameter, scheduler: Any, **_: Any) -> list[float]:
    rates = []
    for step in range(6):
        set_gradients([param], step)
        optimizer.step()
        scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_drives_the_steps_as_it_drives_torchs(name: str) -> None:
    """C4."""
    param, twin = parameter(4, 64), parameter(4, 64)
    with torch.no_grad():
        twin.copy_(param)
    ours = flash.FlashAdamW([param], lr=1e-3, quantize=False)
    theirs = torch.optim.AdamW([twin], lr=1e-3)
    assert losses_of_steps(ours, param, SCHEDULERS[name](ours)) == losses_of_steps(
        theirs, twin, SCHEDULERS[name](theirs)
    )
    torch.testing.assert_close(param, twin, rtol=1e-5, atol=1e-6)


def test_changing_hyperparameters_prepares_nothing_anew() -> None:
    params = mixed_parameters()
    optimizer = flash.FlashAdamW(params)
    scheduler = schedulers.CosineAnnealingLR(optimizer, 50)
    train(params, optimizer, range(1))
    plan = optimizer._plan
    for step in range(1, 50):
        train(params, optimizer, range(step, step + 1))
        scheduler.step()
        optimizer.param_groups[0]["weight_decay"] = 0.1 / step
        optimizer.param_groups[0]["betas"] = (0.9, 1 - 0.1 / step)
    assert optimizer._plan is plan


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_reduce_on_plateau_and_averaging_work() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param], lr=1.0)
    plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        plateau.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05).step()


def test_a_learning_rate_changed_by_hand_is_used_by_the_step_and_by_a_new_scheduler() -> None:
    """C4."""
    param = nn.Parameter(torch.zeros(4, 64))
    optimizer = flash.FlashSGD([param], lr=1.0)
    optimizer.param_groups[0]["lr"] = 0.25
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert bool((param == -0.25).all())
    schedulers.ExponentialLR(optimizer, 0.5)
    assert optimizer.param_groups[0]["initial_lr"] == 0.25


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned() -> None:
    """C23."""
    param = parameter(4, 64)
    optimizer = flash.FlashSGD([param], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        before = float(param.square().sum())
        loss = optimizer.step(closure)
        assert float(loss) == before
        assert float(param.square().sum()) < before
    assert optimizer.step() is None


def test_groups_added_later_step_too() -> None:
    first, second = parameter(4, 64), parameter(4, 64)
    optimizer = flash.FlashAdamW([first], lr=1e-3)
    train([first], optimizer, range(2))
    optimizer.add_param_group({"params": [second], "lr": 0.5})
    before = second.detach().clone()
    train([first, second], optimizer, range(2, 4))
    assert float((second - before).detach().abs().mean()) > 0.1
    assert [float(optimizer.state[p]["step"]) for p in (first, second)] == [4, 2]


def test_parameters_removed_or_replaced_by_hand() -> None:
    params = [parameter(4, 64) for _ in range(3)]
    optimizer = flash.FlashAdamW(params)
    train(params, optimizer, range(2))
    replacement = parameter(4, 64)
    optimizer.param_groups[0]["params"] = [params[0], replacement]
    train([params[0], replacement, params[2]], optimizer, range(2, 3))
    assert [float(optimizer.state[p]["step"]) for p in (params[0], replacement)] == [3, 1]
    assert float(optimizer.state[params[2]]["step"]) == 2
    assert int(optimizer.state[replacement]["stream_key"]) == 3


def test_a_state_cleared_by_hand_starts_afresh() -> None:
    params = [parameter(4, 64) for _ in range(2)]
    optimizer = flash.FlashAdamW(params)
    train(params, optimizer, range(2))
    del optimizer.state[params[0]]
    train(params, optimizer, range(2, 3))
    assert [float(optimizer.state[p]["step"]) for p in params] == [1, 3]
    optimizer.state.clear()
    train(params, optimizer, range(3, 4))
    assert [float(optimizer.state[p]["step"]) for p in params] == [1, 1]


def test_other_things_kept_in_the_state_stay() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(2))
    optimizer.state[param]["note"] = "mine"
    train([param], optimizer, range(2, 4))
    assert optimizer.state[param]["note"] == "mine"
    assert float(optimizer.state[param]["step"]) == 4


@pytest.mark.parametrize("what", ["parameter", "state", "state data", "gradient"])
def test_tensors_that_move_in_memory_are_followed(what: str) -> None:
    params = mixed_parameters()
    optimizer = flash.FlashAdamW(params)
    train(params, optimizer, range(2))
    twins, twin = copy.deepcopy((params, optimizer))
    for step in range(2, 5):
        for param in params:
            state = optimizer.state[param]
            if what == "parameter":
                param.data = param.data.clone()
            elif what == "state":
                optimizer.state[param] = {name: value.clone() for name, value in state.items()}
            elif what == "state data":
                for value in state.values():
                    value.data = value.data.clone()
            else:
                param.grad = None
        train(params, optimizer, range(step, step + 1))
        train(twins, twin, range(step, step + 1))
    assert same_bits(bits_of(params, optimizer), bits_of(twins, twin))


def test_addresses_of_state_are_those_that_its_tensors_tell() -> None:
    reader = _plan._READER
    assert isinstance(reader, _plan._C.TensorReader)
    assert _plan.asks_for_addresses(reader)
    plain = torch.arange(8.0)
    state: dict[Any, Any] = {
        "plain": plain,
        "part": plain[3:],
        "scalar": torch.tensor(1.0),
        "empty": torch.empty(0),
        "parameter": nn.Parameter(torch.ones(2)),
        "subclass": torch.ones(2).as_subclass(type("Subclass", (torch.Tensor,), {})),
        "meta": torch.empty(2, device="meta"),
        "none": None,
    }
    snapshot = reader.snapshot([], [], {0: state})
    assert reader.holds(snapshot, [], {0: state})
    # All that have memory, moved in place or replaced by one that has it elsewhere.
    for name in ("plain", "part", "scalar", "parameter", "subclass"):
        tensor = state[name]
        before = tensor.data
        tensor.data = tensor.data.clone()
        assert not reader.holds(snapshot, [], {0: state}), name
        tensor.data = before
        assert reader.holds(snapshot, [], {0: state}), name
        assert not reader.holds(snapshot, [], {0: {**state, name: tensor.clone()}}), name
    assert not reader.holds(snapshot, [], {0: {**state, "part": plain[2:]}})
    assert not reader.holds(snapshot, [], {0: {**state, "meta": torch.empty(2)}})
    assert not reader.holds(snapshot, [], {0: {**state, "none": plain}})


@pytest.mark.parametrize("reader", [_plan._READER, _plan._PythonReader()])
def test_a_snapshot_is_of_the_parameters_in_their_groups(reader: Any) -> None:
    first, second, frozen = (nn.Parameter(torch.ones(3)) for _ in range(3))
    key = torch.tensor(1)
    state: dict[Any, Any] = {first: {"stream_key": key}, second: {"step": torch.tensor(2.0)}}
    snapshot = reader.snapshot([[first, frozen], [second]], [first, second], state)
    assert reader.holds(snapshot, [[first, frozen], [second]], state)
    assert reader.holds(snapshot, [(first, frozen), (second,)], state)
    for groups in (
        [[first], [second]],
        [[first, second], [frozen]],
        [[first, frozen, second] * 2],
        [[first], [frozen, second]],
        [[first, frozen], [second], []],
    ):
        assert not reader.holds(snapshot, groups, state)
    frozen.grad = torch.ones(3)
    assert not reader.holds(snapshot, [[first, frozen], [second]], state)
    frozen.grad = None
    first.data = torch.ones(3)
    assert not reader.holds(snapshot, [[first, frozen], [second]], state)


def test_another_stream_key_draws_other_numbers() -> None:
    drawn = []
    for added in (0, 0, 1):
        torch.manual_seed(0)
        param = parameter(64, 64, dtype=torch.bfloat16)
        optimizer = flash.FlashAdamW([param])
        train([param], optimizer, range(1))
        state = optimizer.state[param]
        state["stream_key"] = state["stream_key"] + added
        train([param], optimizer, range(1, 2))
        drawn.append(state["exp_avg_sq"].clone())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("rule", RULES)
def test_a_torch_without_exchange_functions_gives_the_same_bits(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = RULES[rule]
    results = []
    for reader in (_plan._READER, _plan._PythonReader()):
        monkeypatch.setattr(_plan, "_READER", reader)
        torch.manual_seed(0)
        params = mixed_parameters()
        optimizer = make(params, **options)
        train(params, optimizer, range(2))
        params[0].data = params[0].data.clone()
        for name, value in optimizer.state[params[1]].items():
            optimizer.state[params[1]][name] = value.clone()
        train(params[:3], optimizer, range(2, 4))
        results.append(bits_of(params, optimizer))
    assert same_bits(*results)


def test_a_model_cast_after_the_optimizer_was_made_and_after_steps() -> None:
    model = nn.Linear(64, 8)
    optimizer = flash.FlashAdamW(model.parameters())
    model.to(torch.bfloat16)
    train(list(model.parameters()), optimizer, range(2))
    assert optimizer.state[model.weight]["weight_correction"].dtype == torch.int8
    model.float()
    train(list(model.parameters()), optimizer, range(2, 4))
    assert "weight_correction" not in optimizer.state[model.weight]
    assert float(optimizer.state[model.weight]["step"]) == 4


def test_a_model_that_changes_its_memory_order_after_steps_keeps_its_state() -> None:
    model = nn.Conv2d(16, 8, 3)
    optimizer = flash.FlashAdamW(model.parameters(), quantize=False)
    train(list(model.parameters()), optimizer, range(2))
    before = optimizer.state[model.weight]["exp_avg"].clone()
    assert float(before.abs().min()) > 0
    model.to(memory_format=torch.channels_last)
    quantized, twin = copy.deepcopy((model, optimizer))
    twin.param_groups[0]["quantize"] = True
    for net, rule in ((model, optimizer), (quantized, twin)):
        for param in net.parameters():
            param.grad = torch.zeros_like(param)
        rule.step()
        state = rule.state[net.weight]
        assert state["exp_avg"].stride() == net.weight.stride()
        assert float(state["step"]) == 3
    torch.testing.assert_close(optimizer.state[model.weight]["exp_avg"], before * 0.9)
    assert twin.state[quantized.weight]["exp_avg_scale"].shape == (8, 3)


def test_gradients_are_cleared_as_torch_does() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    set_gradients([param], 0)
    optimizer.zero_grad(set_to_none=False)
    assert bool((param.grad == 0).all())
    optimizer.zero_grad()
    assert param.grad is None


def test_step_hooks_run() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train([param], optimizer, range(1))
    assert calls == ["before", "after"]


def test_tied_weights_are_stepped_once() -> None:
    embedding = nn.Embedding(16, 64)
    head = nn.Linear(64, 16, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    optimizer = flash.FlashAdamW(model.parameters())
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    assert len(optimizer.state) == 1
    assert float(optimizer.state[head.weight]["step"]) == 1


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_listed_twice_is_stepped_once() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param, param])
    train([param], optimizer, range(2))
    assert float(optimizer.state[param]["step"]) == 2


def test_gradient_scaling_unscales_and_skips_as_for_torch() -> None:
    """E3."""
    params, twins = [parameter(4, 64)], [parameter(4, 64)]
    with torch.no_grad():
        twins[0].copy_(params[0])
    runs = []
    for tensors, make in ((params, flash.FlashSGD), (twins, torch.optim.SGD)):
        optimizer = make(tensors, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=2)
        scales = []
        for step in range(6):
            set_gradients(tensors, step)
            tensors[0].grad.mul_(scaler.get_scale())
            if step in (0, 3):
                tensors[0].grad[0, 0] = float("inf")
            scaler.scale(torch.ones(()))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(tensors, 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        runs.append(scales)
        if make is flash.FlashSGD:
            assert float(optimizer.state[tensors[0]]["step"]) == 4
    assert runs[0] == runs[1]
    torch.testing.assert_close(params[0], twins[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_a_small_network_learns(rule: str) -> None:
    make, options = RULES[rule]
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    flash.cast_model(model)
    lr = {"sgd": 0.3, "lion": 1e-3}.get(rule, 0.03 if "sgd" in rule else 3e-3)
    optimizer = make(model.parameters(), **{**options, "weight_decay": 0.0, "lr": lr})
    x = torch.randn(256, 64, dtype=torch.bfloat16)
    y = x[:, :4].sum(dim=1, keepdim=True).tanh()
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (model(x) - y).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_the_optimizer_works_inside_a_compiled_function_without_being_traced() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for i in range(3):
        set_gradients([param], i)
        step()
    assert float(optimizer.state[param]["step"]) == 3


def test_printing_names_the_class_and_the_options() -> None:
    text = repr(flash.FlashLion([parameter(2)], lr=0.125))
    assert text.startswith("FlashLion (")
    assert "lr: 0.125" in text
    assert "codec: root" in text
