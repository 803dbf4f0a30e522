"""Tensors of every memory order and alignment, empty ones, and any number of them in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flashoptim_cpp as flash
import pytest
import torch
from cases import (
    FLOATS,
    MAIN_RULES,
    RULES,
    STORAGES,
    GroupCase,
    Problem,
    TensorCase,
    every_storage,
    values,
)
from helpers import (
    CPU,
    Content,
    assert_same,
    both,
    contents,
    image,
    parameters,
    set_gradient,
    take_steps,
)
from torch import Tensor, nn

# Elements that a misaligned tensor lies behind the start of its memory.
OFFSETS = (1, 3, 8)
CANARY = 0x5A

#: Dense memory orders of a tensor of four dimensions; each makes a tensor of that order.
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "reversed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "swapped": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_memory_orders(rule: str, order: str, device: torch.device) -> None:
    make, options = RULES[rule]
    shapes = [(8, 16, 3, 5), (64, 4, 8, 8), (16, 3, 1, 1), (0, 4, 2, 2)]

    def work(where: torch.device) -> list[Content]:
        params, groups = [], []
        for dtype, bits in STORAGES.values():
            made = [
                nn.Parameter(ORDERS[order](values("ordinary", shape, dtype, seed, 0.5)).to(where))
                for seed, shape in enumerate(shapes)
            ]
            params += made
            groups.append({"params": made, "master_weight_bits": bits})
        optimizer = make(groups, **options)
        for step in range(4):
            for index, param in enumerate(params):
                dtype = FLOATS[(index + step) % 3]
                gradient = values("ordinary", param.shape, dtype, 100 * step + index, 0.1).to(where)
                # In one step the gradient has another order than the weight and is copied.
                set_gradient(param, gradient if step == 2 else ORDERS[order](gradient))
            optimizer.step()
        for param in params:
            for name, tensor in optimizer.state[param].items():
                if tensor.shape == param.shape and param.numel():
                    assert tensor.stride() == param.stride(), name
        return contents(params, optimizer)

    both(device, work)


def misaligned(tensor: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """A copy that starts `offset` elements into its memory, and all that memory."""
    storage = torch.empty(tensor.numel() + 2 * offset, dtype=tensor.dtype, device=tensor.device)
    image(storage).view(torch.uint8).fill_(CANARY)
    view = storage[offset : offset + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view, storage


def assert_untouched(storage: Tensor, offset: int, what: str) -> None:
    """Fails if something was written beside a misaligned tensor."""
    inside = storage.numel() - offset
    for edge in (storage[:offset], storage[inside:]):
        assert bool((image(edge).view(torch.uint8) == CANARY).all()), f"written beside {what}"


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_misaligned_pointers(rule: str, offset: int, device: torch.device) -> None:
    """Weights, gradients and states anywhere in memory; nothing beside them is touched."""
    make, options = RULES[rule]
    shapes = ((1, 64), (3, 64), (40, 128), (5, 100), (1, 4095), (70,))
    storages = ("bf16-24", "bf16-32", "fp16-24", "fp32")
    problem = Problem(every_storage(shapes, storages, all_gradients_of=[(40, 128)]))

    def work(where: torch.device) -> list[Content]:
        memories: list[tuple[str, Tensor]] = []

        def move(what: str, tensor: Tensor) -> Tensor:
            view, storage = misaligned(tensor, offset)
            memories.append((what, storage))
            return view

        groups = problem.parameter_groups(where)
        for group in groups:
            group["params"] = [nn.Parameter(move("a weight", p.detach())) for p in group["params"]]
        optimizer = make(groups, **options)
        params = parameters(optimizer)
        take_steps(optimizer, problem, where, [1])
        for param in params:
            for name, tensor in optimizer.state[param].items():
                if tensor.dim():
                    optimizer.state[param][name] = move(name, tensor)
        for step in (2, 3):
            for param, gradient in zip(params, problem.gradients(step, where), strict=True):
                set_gradient(param, move("a gradient", gradient))
            optimizer.step()
        for what, storage in memories:
            assert_untouched(storage, offset, what)
        return contents(params, optimizer)

    both(device, work)


EMPTY = (0, 64)
FULL = (8, 64)


@pytest.mark.parametrize(
    "shapes",
    [
        *([EMPTY if place == hole else FULL for place in range(5)] for hole in range(5)),
        [FULL] * 35 + [EMPTY],
        [FULL] * 29 + [EMPTY],
        [FULL] * 182 + [EMPTY],
        [FULL] * 183 + [EMPTY],
        [EMPTY] * 184 + [FULL],
        [EMPTY],
        [EMPTY] * 7,
        [(0,), (64, 0), FULL, (3, 0, 5)],
    ],
    ids=lambda shapes: f"{len(shapes)}-{sum(0 in s for s in shapes)}-{shapes.index(min(shapes))}",
)
def test_empty_tensors(shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
    """C15: Those beside an empty tensor are updated, and its own state is kept and counted."""
    problem = Problem([GroupCase("group", tuple(TensorCase(shape) for shape in shapes))])

    def work(where: torch.device) -> list[Content]:
        optimizer = flash.FlashAdamW(problem.parameter_groups(where))
        params = parameters(optimizer)
        before = contents(params, optimizer)
        take_steps(optimizer, problem, where, (1, 2))
        after = contents(params, optimizer)
        for one, two in zip(before, after, strict=True):
            assert {"step", "exp_avg", "exp_avg_sq", "weight_correction"} <= two.keys()
            assert float(two["step"]) == 2
            if one["weight"].numel():
                assert not torch.equal(one["weight"], two["weight"])
        return after

    both(device, work)


def test_no_gradient_at_all(device: torch.device) -> None:
    optimizer = flash.FlashAdamW([nn.Parameter(torch.ones(4, 64, device=device))])
    optimizer.step()
    assert not optimizer.state
    assert bool((parameters(optimizer)[0] == 1).all())


def many_problem(count: int) -> Problem:
    """Tensors of many shapes, dtypes and forms, in no order."""
    shapes = ((1, 64), (5, 100), (70,), (33, 64), (0, 64), (2, 128), ())
    tensors = tuple(
        TensorCase(shapes[i % 7], FLOATS[i // 2 % 3], FLOATS[i // 3 % 3]) for i in range(count)
    )
    return Problem([GroupCase("group", tensors)])


# A launch takes 183 tensors of one form.
@pytest.mark.parametrize("count", [1, 182, 183, 184, 367, 1000])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "of all kinds"])
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_any_number_of_tensors(rule: str, alike: bool, count: int, device: torch.device) -> None:
    make, options = RULES[rule]
    problem = many_problem(count)
    if alike:
        problem = Problem([GroupCase("group", (TensorCase((2, 64)),) * count)])

    def work(where: torch.device) -> list[Content]:
        optimizer = make(problem.parameter_groups(where), **options)
        take_steps(optimizer, problem, where, (1, 2))
        return contents(parameters(optimizer), optimizer)

    both(device, work)


@pytest.mark.parametrize("parts", [2, 7, 60])
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_batches_do_not_matter(rule: str, parts: int, device: torch.device) -> None:
    """Stepping tensors together or a few at a time gives the same bits."""
    make, options = RULES[rule]
    problem = many_problem(60)

    def work(count: int) -> list[Content]:
        optimizer = make(problem.parameter_groups(device), **options)
        params = parameters(optimizer)
        for step in range(1, 4):
            gradients = problem.gradients(step, device)
            for part in range(count):
                for index, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
                    param.grad = None
                    if index % count == part:
                        set_gradient(param, gradient)
                optimizer.step()
        return contents(params, optimizer)

    assert_same(work(1), work(parts), problem.names)


@pytest.mark.parametrize("rule", MAIN_RULES)
def test_devices_mix_in_one_optimizer(rule: str, device: torch.device) -> None:
    make, options = RULES[rule]
    problem = Problem(every_storage(((33, 64), (5, 100), (0, 64), (70,))))
    outcomes = []
    for where in ([CPU], [device], [CPU, device], [device, device, CPU]):
        groups = problem.parameter_groups(CPU)
        places = [where[index % len(where)] for index in range(len(problem.names))]
        turn = iter(places)
        for group in groups:
            group["params"] = [nn.Parameter(p.detach().to(next(turn))) for p in group["params"]]
        optimizer = make(groups, **options)
        params = parameters(optimizer)
        for step in range(1, 4):
            gradients = problem.gradients(step, CPU)
            for param, gradient, place in zip(params, gradients, places, strict=True):
                set_gradient(param, gradient.to(place))
            optimizer.step()
        assert [param.device for param in params] == places
        outcomes.append(contents(params, optimizer))
    for other in outcomes[1:]:
        assert_same(outcomes[0], other, problem.names)


def test_complex_parameters(device: torch.device) -> None:
    def work(where: torch.device) -> list[Content]:
        generator = torch.Generator().manual_seed(1)

        def numbers() -> Tensor:
            return torch.randn(6, 40, dtype=torch.complex64, generator=generator).to(where)

        param = nn.Parameter(numbers())
        optimizer = flash.FlashAdamW([param])
        for conjugated in (False, True, False):
            gradient = numbers()
            param.grad = gradient.conj() if conjugated else gradient
            optimizer.step()
        return contents([param], optimizer)

    both(device, work)


def test_three_hundred_shapes(device: torch.device) -> None:
    """Every shape is right at its first step."""
    tensors = tuple(TensorCase((1 + i % 17, 4 + 7 * i)) for i in range(300))
    problem = Problem([GroupCase("group", tensors)])

    def work(where: torch.device) -> list[Content]:
        optimizer = flash.FlashAdamW(problem.parameter_groups(where))
        take_steps(optimizer, problem, where, [1])
        return contents(parameters(optimizer), optimizer)

    both(device, work)
