"""Torch's wrapper of an optimizer's step, for the steps in which it has something to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer, optimizer


def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
    """In place of `torch.optim.Optimizer.profile_hook_step`, which runs hooks and marks the step.

    The mark is for profilers only, and making it takes as long as the rest of the Python code of a
    step. Without hooks and profiler the step is called at once.

    Args:
        func: the step of a class of optimizers.
    """
    hooked = Optimizer.profile_hook_step(func)
    hooks_before = getattr(optimizer, "_global_optimizer_pre_hooks", None)
    hooks_after = getattr(optimizer, "_global_optimizer_post_hooks", None)
    if hooks_before is None or hooks_after is None:
        return hooked  # this torch keeps them elsewhere

    @functools.wraps(func)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            hooks_before
            or hooks_after
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or torch._C._autograd._profiler_enabled()
        ):
            return hooked(self, *args, **kwargs)
        return func(self, *args, **kwargs)

    return step
