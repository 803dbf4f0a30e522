"""Torch's wrapper of an optimizer's step, for the steps in which it has something to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from torch.autograd import profiler
from torch.optim import Optimizer, optimizer

_LOOKED_AT: Final = (
    (optimizer, "_global_optimizer_pre_hooks"),
    (optimizer, "_global_optimizer_post_hooks"),
    (profiler, "_is_profiler_enabled"),
)


def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
    """In place of `torch.optim.Optimizer.profile_hook_step`, which runs hooks and marks the step.

    The mark is for profilers only, and making it takes as long as the rest of the Python code of a
    step. Without hooks and profiler the step is called at once. An ExecutionTraceObserver without a
    profiler beside it is not seen here and gets no mark.

    Args:
        func: the step of a class of optimizers.
    """
    hooked = Optimizer.profile_hook_step(func)
    if not all(hasattr(module, name) for module, name in _LOOKED_AT):
        return hooked  # this torch keeps them elsewhere

    @functools.wraps(func)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            args  # a closure, which may register hooks
            or kwargs
            or optimizer._global_optimizer_pre_hooks
            or optimizer._global_optimizer_post_hooks
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or profiler._is_profiler_enabled  # in any thread; Dynamo can guard on it
        ):
            return hooked(self, *args, **kwargs)
        return func(self, *args, **kwargs)

    return step
