"""The bits of the GPU are those of the CPU: every rule, codec, dtype and value, size after size."""

from __future__ import annotations

import functools
from typing import Literal

import flashoptim_cpp as flash
import pytest
import torch
from cases import (
    CODECS,
    LARGE_SHAPES,
    MAIN_RULES,
    RULES,
    SMALL_SHAPES,
    STORAGES,
    VALUES,
    WITHOUT_MOMENTS,
    GroupCase,
    Problem,
    TensorCase,
    every_storage,
)
from helpers import (
    Content,
    assert_conformance,
    assert_same,
    both,
    contents,
    parameters,
    take_steps,
    vector_targets,
)

STEPS = (1, 12)
MANY_STEPS = (1, 2, 200)
FEW_STEPS = (1, 3)

ALL_GRADIENTS_OF = ((33, 64), (5, 100), (20, 256))
RULES_AND_CODECS = [
    (rule, codec)
    for rule in RULES
    for codec in CODECS
    if codec == "root" or rule not in WITHOUT_MOMENTS
]


@pytest.fixture(scope="module")
def small() -> dict[str, Problem]:
    """Small tensors of all storages and gradient dtypes, by kind of values."""
    groups = every_storage(SMALL_SHAPES, all_gradients_of=ALL_GRADIENTS_OF)
    return {kind: Problem(groups, kind) for kind in VALUES}


@pytest.fixture(scope="module")
def lasting() -> Problem:
    """A few tensors of every codec, to be followed for long."""
    shapes = ((3, 64), (5, 100), (1, 65), (70,), (0, 64))
    storages = ("bf16-24", "bf16-32", "fp16-24", "fp32")
    groups: list[GroupCase] = []
    for codec in CODECS:
        for group in every_storage(shapes, storages, {"codec": codec}, [(3, 64)]):
            groups.append(GroupCase(f"{codec} {group.name}", group.tensors, group.options))
    return Problem(groups)


@pytest.fixture(scope="module")
def large() -> Problem:
    """Millions of elements."""
    groups = [
        GroupCase(
            "bf16-24",
            (
                *(TensorCase(shape) for shape in LARGE_SHAPES),
                TensorCase((1024, 1024), gradient=torch.float32),
            ),
        ),
        GroupCase(
            "bf16-24 stochastic",
            tuple(TensorCase(shape) for shape in LARGE_SHAPES),
            {"stochastic_rounding": True},
        ),
    ]
    for name in ("bf16-16", "bf16-32", "fp16-24", "fp32"):
        dtype, bits = STORAGES[name]
        tensors = (TensorCase((1024, 1024), dtype), TensorCase((1 << 13, 65), dtype, dtype))
        groups.append(GroupCase(name, tensors, {"master_weight_bits": bits}))
    return Problem(groups)


@functools.cache
def scalar_problem(kind: str) -> Problem:
    """What the slow reference can follow."""
    shapes = ((70,), (1, 65), (3, 64), (5, 100))
    return Problem(every_storage(shapes, all_gradients_of=[(3, 64)]), kind)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(("rule", "codec"), RULES_AND_CODECS)
def test_every_storage(
    rule: str, codec: str, kind: str, small: dict[str, Problem], device: torch.device
) -> None:
    """B20, C1."""
    make, options = RULES[rule]
    options = {**options, "codec": codec, "seed": 0x9E3779B97F4A7C15}
    targets = vector_targets()
    targets = {"ordinary": targets, "nonfinite": targets[:1], "wild": targets[-1:]}[kind]
    assert_conformance(make, options, small[kind], device, STEPS, targets)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(rule, kind) for kind in VALUES for rule in (RULES if kind == "ordinary" else MAIN_RULES)],
)
def test_the_scalar_reference(rule: str, kind: str, device: torch.device) -> None:
    make, options = RULES[rule]
    problem = scalar_problem(kind)
    for codec in CODECS:
        with_codec = {**options, "codec": codec}
        assert_conformance(make, with_codec, problem, device, FEW_STEPS, ["scalar"])


@pytest.mark.parametrize("rule", RULES)
def test_two_hundred_steps(rule: str, lasting: Problem, device: torch.device) -> None:
    make, options = RULES[rule]
    assert_conformance(make, options, lasting, device, MANY_STEPS, vector_targets())


@pytest.mark.parametrize("rule", RULES)
def test_millions_of_elements(rule: str, large: Problem, device: torch.device) -> None:
    make, options = RULES[rule]
    assert_conformance(make, options, large, device, FEW_STEPS, vector_targets())


@pytest.mark.parametrize("rule", MAIN_RULES)
def test_weights_changed_from_outside(rule: str, device: torch.device) -> None:
    """Pruned and overwritten weights meet corrections that were made for others."""
    make, options = RULES[rule]
    problem = Problem(every_storage(SMALL_SHAPES, all_gradients_of=ALL_GRADIENTS_OF))

    def work(where: torch.device) -> list[Content]:
        optimizer = make(problem.parameter_groups(where), **options)
        take_steps(optimizer, problem, where, range(1, 5))
        generator = torch.Generator().manual_seed(5)
        for param in parameters(optimizer):
            fate = torch.randint(5, param.shape, generator=generator).to(where)
            with torch.no_grad():
                param.masked_fill_(fate == 0, 0.0).masked_fill_(fate == 1, -0.0)
                param.masked_fill_(fate == 2, 3.0)
        take_steps(optimizer, problem, where, range(5, 9))
        return contents(parameters(optimizer), optimizer)

    both(device, work, problem.names)


@pytest.mark.parametrize("rule", MAIN_RULES)
def test_corrections_that_fit_no_weight(rule: str, device: torch.device) -> None:
    """Any bits in the corrections give the same result everywhere."""
    make, options = RULES[rule]
    storages = [name for name in STORAGES if not name.endswith("-16") and name != "fp32"]
    groups = every_storage(SMALL_SHAPES, storages, all_gradients_of=ALL_GRADIENTS_OF)
    problem = Problem(groups, "nonfinite")

    def work(where: torch.device) -> list[Content]:
        optimizer = make(problem.parameter_groups(where), **options)
        take_steps(optimizer, problem, where, [1])
        generator = torch.Generator().manual_seed(6)
        for param in parameters(optimizer):
            correction = optimizer.state[param]["weight_correction"]
            low, high = correction_range(param, correction)
            noise = torch.randint(low, high, param.shape, generator=generator)
            correction.copy_(noise.to(correction.dtype))
        take_steps(optimizer, problem, where, range(2, 5))
        return contents(parameters(optimizer), optimizer)

    both(device, work, problem.names)


def correction_range(param: torch.Tensor, correction: torch.Tensor) -> tuple[int, int]:
    """What a correction can hold: that of 32-bit fp16 weights has 13 bits (format, 4.2)."""
    if correction.dtype == torch.int8:
        return -128, 128
    return (-(1 << 12), 1 << 12) if param.dtype == torch.float16 else (-(1 << 15), 1 << 15)


BAD_GRADIENTS = {0: "inf", 7: "nan", 200: "-inf", 249: "nan"}


@pytest.fixture(scope="module")
def finite() -> Problem:
    """More tensors than one launch takes."""
    tensors = tuple(TensorCase((5, 64 + index), gradient=torch.float32) for index in range(250))
    return Problem([GroupCase("group", tensors)])


def spoiled(
    problem: Problem, device: torch.device, policy: Literal["skip", "error"]
) -> flash.FlashOptimizer:
    """An optimizer after one step, some of whose gradients are not finite now."""
    optimizer = flash.FlashAdamW(problem.parameter_groups(device), nonfinite=policy)
    take_steps(optimizer, problem, device, [1])
    params = parameters(optimizer)
    for index, value in BAD_GRADIENTS.items():
        gradient = params[index].grad
        assert gradient is not None
        gradient.data = gradient.clone()
        gradient[-1, -1] = float(value)
    return optimizer


def test_tensors_with_nonfinite_gradients_are_skipped(
    finite: Problem, device: torch.device
) -> None:
    def work(where: torch.device) -> list[Content]:
        optimizer = spoiled(finite, where, "skip")
        before = contents(parameters(optimizer), optimizer)
        optimizer.step()
        after = contents(parameters(optimizer), optimizer)
        assert optimizer.skipped_tensors == len(BAD_GRADIENTS)
        for index in BAD_GRADIENTS:
            assert_same([before[index]], [after[index]], [finite.names[index]], "not skipped")
        assert float(after[1]["step"]) == 2
        return after

    both(device, work, finite.names)


def test_nonfinite_gradients_are_refused(finite: Problem, device: torch.device) -> None:
    optimizer = spoiled(finite, device, "error")
    before = contents(parameters(optimizer), optimizer)
    with pytest.raises(RuntimeError, match="parameter 0 of group 0"):
        optimizer.step()
    after = contents(parameters(optimizer), optimizer)
    assert_same(before, after, finite.names, "something was written")
