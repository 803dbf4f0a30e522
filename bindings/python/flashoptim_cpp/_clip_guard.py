"""Refuses torch's clipping functions for parameters whose gradients are released.

They would find no gradients, clip nothing and return 0. So while gradient release is on, the
functions of ``torch.nn.utils`` look at their parameters first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

# `clip_grad_norm_` looks the last one up when it is called: whoever imported it before is seen too.
_NAMES: Final = {
    torch.nn.utils: ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"),
    clip_grad: ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_"),
}

Clip = Callable[..., Any]
NameOf = Callable[[Tensor], str | None]

_originals: dict[tuple[ModuleType, str], tuple[Clip, Clip]] = {}


def install(released: NameOf) -> None:
    """Puts the guards in, if they are not there.

    Args:
        released: gives the name of a parameter whose gradient is released, else None.
    """
    if _originals:
        return
    for module, names in _NAMES.items():
        for name in names:
            original = getattr(module, name, None)  # torch before 2.6 lacks some
            if original is not None:
                guarded = _guarded(original, released)
                _originals[module, name] = original, guarded
                setattr(module, name, guarded)


def uninstall() -> None:
    """Takes the guards out; leaves alone what somebody else has put in their place."""
    for (module, name), (original, guarded) in _originals.items():
        if getattr(module, name) is guarded:
            setattr(module, name, original)
    _originals.clear()


def _guarded(original: Clip, released: NameOf) -> Clip:
    @functools.wraps(original)
    def clip(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for param in given:
            name = released(param)
            if name is not None:
                raise RuntimeError(
                    f"{original.__name__.lstrip('_')} has no gradient of '{name}' to clip: "
                    "gradient release steps it and frees its gradient in the backward pass. Pass "
                    "max_norm=... to enable_gradient_release instead"
                )
        return original(given or parameters, *args, **kwargs)

    return clip
