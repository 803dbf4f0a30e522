"""Parts of every row, as tensor parallelism gives them, have the bits of the whole tensor.

The random numbers of a part are those of its groups in the whole, so that on a GPU it takes other
kernels than the whole where random numbers are drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import MAIN_RULES, RULES, STORAGES, GroupCase, Problem, TensorCase, every_storage
from flashoptim_cpp import _C, _plan, _state
from helpers import (
    Content,
    assert_same,
    both,
    contents,
    parameters,
    schedule,
    set_gradient,
    take_steps,
)
from torch import Tensor, nn

# Rows of whole groups, with a short last one, and more groups than a block has.
SHAPES = ((7, 256), (33, 192), (5, 190), (40, 4096 + 64))
CUT = 128  # the parts are columns before it and from it on
STEPS = range(1, 5)
GROUP = _C.GROUP_SIZE


def columns(tensor: Tensor, part: int) -> Tensor:
    return (tensor[:, :CUT] if part == 0 else tensor[:, CUT:]).clone()


def joined(parts: list[Content]) -> Content:
    """What the two parts of a parameter hold together."""
    one, two = parts
    return {
        name: torch.cat([one[name], two[name]], dim=1) if one[name].dim() == 2 else one[name]
        for name in one
    }


def bound_to_part(
    part: int, lengths: dict[Tensor, int]
) -> Callable[[_plan.Entry, _state.State], _C.TensorBinding]:
    """How a plan binds parameters that are parts, given the row lengths of the wholes."""
    bind = _plan._binding

    def bound(entry: _plan.Entry, state: _state.State) -> _C.TensorBinding:
        binding = bind(entry, state)
        binding.first_group = part * (CUT // GROUP)
        binding.group_stride = -(-lengths[entry.param] // GROUP)
        return binding

    return bound


@pytest.mark.parametrize("codec", ["root", "softsign"])
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_parts_of_rows(
    rule: str, codec: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = RULES[rule]
    options = {**options, "codec": codec}
    names = [name for name in STORAGES if name in ("bf16-24", "bf16-32", "fp16-24", "fp32")]
    tensors = tuple(TensorCase(shape) for shape in SHAPES)
    plain = GroupCase("as trained", tensors)
    random = GroupCase("as fine-tuned", tensors, {"stochastic_rounding": True})
    problem = Problem([plain, random, *every_storage(SHAPES, names)])

    def work(where: torch.device) -> list[Content]:
        whole = make(problem.parameter_groups(where), **options)
        take_steps(whole, problem, where, STEPS)
        wanted = contents(parameters(whole), whole)

        found: list[list[Content]] = []
        for part in (0, 1):
            groups = problem.parameter_groups(where)
            lengths: dict[Tensor, int] = {}
            for group in groups:
                cut = [nn.Parameter(columns(param.detach(), part)) for param in group["params"]]
                for param, old in zip(cut, group["params"], strict=True):
                    lengths[param] = old.shape[1]
                group["params"] = cut

            monkeypatch.setattr(_plan, "_binding", bound_to_part(part, lengths))
            optimizer = make(groups, **options)
            for step in STEPS:
                for group in optimizer.param_groups:
                    group["lr"] = schedule(options["lr"], step)
                gradients = problem.gradients(step, where)
                for param, gradient in zip(parameters(optimizer), gradients, strict=True):
                    set_gradient(param, columns(gradient, part))
                optimizer.step()
            monkeypatch.undo()
            found.append(contents(parameters(optimizer), optimizer))
        together = [joined(list(pair)) for pair in zip(*found, strict=True)]
        assert_same(wanted, together, problem.names, f"parts on {where}")
        return together

    both(device, work, problem.names)
