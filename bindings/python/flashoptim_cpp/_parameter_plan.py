"""The plan of one parameter that is stepped alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _C, _options, _plan
from ._numerics import check_entry
from ._plan import Entry, StepPlan
from ._state import State, parameter_name

if TYPE_CHECKING:
    from ._optimizer import FlashOptimizer


class ParameterPlan(StepPlan):
    """A `StepPlan` of one parameter, whose cost does not depend on how many others there are."""

    def __init__(
        self,
        kind: _options.RuleKind,
        group: _options.Group,
        number: int,
        entry: Entry,
        state: State,
        skip_nonfinite: bool,
    ) -> None:
        """Prepares the step.

        Args:
            kind: the optimizer's rule.
            group: the parameter's group.
            number: of that group, for messages.
            entry: the parameter.
            state: the parameter's state.
            skip_nonfinite: leave the parameter alone where the group's policy is to propagate.
        """
        self._first_group = number
        self._skip_nonfinite = skip_nonfinite
        alone = {**group, "params": [entry.param]}
        super().__init__(kind, [alone], [replace(entry, group=0)], {entry.param: state})

    def _push(self, index: int, group: _options.Group, values: tuple[Any, ...]) -> None:
        if self._skip_nonfinite and group["nonfinite"] == "propagate":
            group = {**group, "nonfinite": "skip"}
        super()._push(index, group, values)

    def fits_parameter(self, group: _options.Group, state: State) -> bool:
        """Whether the plan is still right; passes changed hyper-parameters on.

        Raises:
            ValueError, TypeError: a hyper-parameter is not valid.
        """
        states = {self._tracked[0]: state}
        return _plan._READER.holds(self._snapshot, self._params, states) and self._follow([group])

    def step_parameter(self, gradient: Tensor | None, scale: float) -> int:
        """Steps the parameter.

        Args:
            gradient: in place of the parameter's own.
            scale: divides the gradient; above 0.

        Returns:
            1 if it was left alone since its gradient is not finite, else 0.

        Raises:
            RuntimeError, TypeError, ValueError: the gradient cannot be used; nothing was written.
        """
        entry = self.entries[0]
        if self._host_scalars:
            self._native.set_gradient_scale(scale)
        copy = None
        if gradient is not None:
            copy = self._set_gradient(0, gradient)
        elif _plan._READER.read_gradients(self._native, self._snapshot, self._tracked, []):
            copy = self._set_gradient(0, entry.param.grad)
        skipped = self._run(None, None)
        del copy  # the native step has read it
        torch.autograd.graph.increment_version(entry.param)
        return skipped


def step_alone(
    optimizer: FlashOptimizer,
    param: Tensor,
    group: dict[str, Any] | None,
    plans: dict[Tensor, ParameterPlan],
) -> None:
    """Steps one parameter of an optimizer.

    Args:
        optimizer: the optimizer.
        param: the parameter; without a gradient it is left alone.
        group: the group that it is in, if known.
        plans: of parameters that were stepped so before.

    Raises:
        ValueError: the parameter is not in the group, or in none. Otherwise as a step.
    """
    if not isinstance(param, Tensor):
        raise TypeError(f"step_param steps one parameter, not {type(param).__name__}")
    number, position = _place_of(param, group, optimizer.param_groups)
    if param.grad is None:
        return
    group = optimizer.param_groups[number]
    plan = plans.get(param)
    if plan is None or not plan.fits_parameter(group, optimizer.state.get(param, {})):
        name = parameter_name(optimizer.param_groups, number, position)
        plan = optimizer._make_parameter_plan(param, number, name, skip_nonfinite=False)
        plans[param] = plan
    if group["check_numerics"]:
        check_entry(plan.entries[0], group, optimizer._kind.rule, optimizer._largest)
    _C.set_cpu_threads(torch.get_num_threads())
    optimizer.skipped_tensors += plan.step_parameter(None, 1.0)


def _place_of(
    param: Tensor, group: dict[str, Any] | None, groups: list[dict[str, Any]]
) -> tuple[int, int]:
    for number, candidate in enumerate(groups):
        if group is not None and candidate is not group:
            continue
        for position, other in enumerate(candidate["params"]):
            if other is param:
                return number, position
    where = "in none of the optimizer's groups" if group is None else "not in the group given"
    raise ValueError(
        f"the parameter of shape {list(param.shape)} is {where}; add it with add_param_group()"
    )
