"""A parameter while gradient release is on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ._parameter_plan import ParameterPlan


class Slot:
    """A parameter whose gradient is released."""

    __slots__ = ("_hook", "buffer", "count", "group", "name", "param", "place", "plan", "position")

    def __init__(self, param: Tensor, name: str, place: int, group: int, position: int) -> None:
        self.param = param
        self.name = name
        self.place = place  # among the slots
        self.group = group  # where the optimizer has it
        self.position = position
        self.count = 0  # gradients since the last step
        self.buffer: Tensor | None = None  # fp32 sum of gradients in 16 bits
        self.plan: ParameterPlan | None = None
        self._hook: RemovableHandle | None = None

    def add_hook(self, hook: Callable[[Tensor], None]) -> None:
        """Calls the hook whenever the parameter's gradient is complete."""
        self._hook = self.param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def remove_hook(self) -> None:
        """Does so no longer."""
        if self._hook is not None:
            self._hook.remove()

    def find_group(self, groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The parameter's group, also after groups were replaced or changed; None if it has none.

        Looks where the parameter was last, so that a step does not search.
        """
        if self.group < len(groups):
            params = groups[self.group]["params"]
            if self.position < len(params) and params[self.position] is self.param:
                return groups[self.group]
        self.plan = None
        for self.group, group in enumerate(groups):
            for self.position, param in enumerate(group["params"]):
                if param is self.param:
                    return group
        return None
