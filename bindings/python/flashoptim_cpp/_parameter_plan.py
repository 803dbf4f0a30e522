"""The plan of one parameter that is stepped alone, in the backward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import _options, _plan
from ._plan import Entry, StepPlan
from ._state import State


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
        return _plan._READER.holds(self._snapshot, self._tracked, states) and self._follow([group])

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
