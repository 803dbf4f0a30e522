"""Gradient release: parameters are stepped, and their gradients freed, in the backward pass."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import NoReturn

import torch
from torch import Tensor, nn

from ._optimizer import FlashOptimizer
from ._release import PreStep, Release, released_name
from ._release_clipping import NormClipper
from ._release_slot import Slot

_DDP = nn.parallel.DistributedDataParallel


class GradientReleaseHandle:
    """What `enable_gradient_release` returns; leaving it as a context manager calls `remove`."""

    def __init__(self, release: Release) -> None:
        self._release = release

    @property
    def active(self) -> bool:
        """Whether gradients are still released."""
        return self._release.active

    def remove(self) -> None:
        """Goes back to plain training; again: nothing.

        Gradients that were accumulated and not stepped are in ``.grad`` afterwards.
        """
        if self._release.active:
            self._release.remove()

    def measure(self) -> AbstractContextManager[None]:
        """Backward passes inside measure gradients and drop them, without a step.

        The next step is then clipped by the exact global norm instead of that of the step before::

            with handle.measure():
                loss_of(batch).backward()
            loss_of(batch).backward()
            optimizer.step()

        With ``grad_scaler``, a norm that is not finite makes the next step change nothing.

        Raises:
            RuntimeError: release is off, has no ``max_norm``, or accumulates micro-batches; in the
                backward pass, if a parameter gets a second gradient; at the end, if none got one.
        """
        clipper = self._active_clipper("measure()")
        if self._release.accumulates:
            raise RuntimeError(
                "measure() is of no use with accumulate: the norm of a sum of gradients is known "
                "only when all of them are kept. Clip by the norm of the previous step"
            )
        return self._release.measure(clipper)

    @property
    def total_norm(self) -> Tensor | None:
        """Norm of all gradients of the last finished step, before clipping: 0-dim fp32.

        None before the first step. It is not in the optimizer's state dict: to resume a run to the
        bit, save it and set it before the first step.

        Raises:
            RuntimeError: release is off or has no ``max_norm``.
        """
        return self._active_clipper("total_norm").total_norm

    @total_norm.setter
    def total_norm(self, norm: Tensor | float) -> None:
        self._active_clipper("total_norm").total_norm = norm

    def _active_clipper(self, what: str) -> NormClipper:
        if not self.active:
            raise RuntimeError(f"{what} needs gradient release, which has been removed")
        if self._release.clipper is None:
            raise RuntimeError(
                f"{what} needs max_norm: enable_gradient_release(..., max_norm=...); float('inf') "
                "measures without clipping"
            )
        return self._release.clipper

    def __enter__(self) -> GradientReleaseHandle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a handle of gradient release cannot be copied or pickled; copies of a model and its "
            "optimizer train plainly: call enable_gradient_release on them"
        )


def enable_gradient_release(
    model: nn.Module,
    optimizer: FlashOptimizer,
    *,
    max_norm: float | None = None,
    accumulate: int = 1,
    accumulate_dtype: torch.dtype | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
    pre_step: PreStep | None = None,
) -> GradientReleaseHandle:
    """Steps each parameter in the backward pass, as soon as its gradient is complete, and frees it.

    The weights are those of the same training without release, to the last bit. Gradients never
    exist all at once: at most the largest two do. Call ``optimizer.step()`` or ``zero_grad()`` once
    per step as before. docs/gradient-release.md says what they do, and all of the following.

    Parameters of the model that the optimizer does not have keep their gradients; parameters of the
    optimizer that the model does not have are stepped by ``optimizer.step()``. So are parameters
    that are added, or no longer frozen, later.

    Args:
        model: the model. `DistributedDataParallel` is supported, and must be passed itself.
        optimizer: steps the model's parameters, or some of them.
        max_norm: scale the gradients of a step by ``min(1, max_norm / (norm + 1e-6))``, where norm
            is that of the previous step, or exact after `GradientReleaseHandle.measure`.
        accumulate: number of backward passes whose gradients are added up for a step. A parameter
            is stepped with the last of them, or by ``optimizer.step()`` if it got fewer.
        accumulate_dtype: float32 adds 16-bit gradients up in fp32; None: in ``.grad``, as torch.
        grad_scaler: unscales gradients by its scale. A parameter whose gradient is not finite is
            left alone, while others may have been stepped; use ``scaler.step(optimizer)`` and
            ``scaler.update()`` as before.
        pre_step: called with a parameter and its group before its step; False: no step.

    Raises:
        TypeError: the model, the optimizer or the scaler is none, or the model is wrapped in a way
            that is not supported.
        ValueError: an argument is out of range, or the optimizer has no parameter of the model.
        RuntimeError: release is on already, or an embedding has sparse gradients.
    """
    _check_types(model, optimizer)
    _check_options(optimizer, max_norm, accumulate, accumulate_dtype, grad_scaler, pre_step)
    reducer = model if isinstance(model, _DDP) else None
    if reducer is not None and accumulate > 1:
        raise ValueError(
            "with DistributedDataParallel, accumulate must be 1: gradients of backward passes "
            "under model.no_sync() are added up, and stepped with that of the next one"
        )
    module = model if reducer is None else reducer.module
    if optimizer._release is not None:
        raise RuntimeError(
            "gradient release is on already for this optimizer; remove() its handle first, or pass "
            "one module that holds all its models"
        )
    optimizer._release = Release(
        optimizer,
        _find_slots(module, optimizer),
        clipper=None if max_norm is None else NormClipper(float(max_norm)),
        accumulate=accumulate,
        accumulate_dtype=accumulate_dtype,
        pre_step=pre_step,
        grad_scaler=grad_scaler,
        reducer=reducer,
    )
    return GradientReleaseHandle(optimizer._release)


def _check_types(model: nn.Module, optimizer: FlashOptimizer) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(optimizer, FlashOptimizer):
        raise TypeError(
            f"optimizer must be one of flashoptim_cpp, not {type(optimizer).__name__}: it has to "
            "step one parameter at a time"
        )
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    for name, module in model.named_modules():
        if fsdp is not None and isinstance(module, fsdp):
            raise TypeError(
                f"module '{name}' is a FullyShardedDataParallel, whose flat parameters cannot be "
                "released; use fully_shard"
            )
        if name and isinstance(module, _DDP):
            raise TypeError(
                f"module '{name}' is a DistributedDataParallel inside the model; wrap the whole "
                "model, and pass the wrapper"
            )


def _check_options(
    optimizer: FlashOptimizer,
    max_norm: float | None,
    accumulate: int,
    accumulate_dtype: torch.dtype | None,
    grad_scaler: torch.amp.GradScaler | None,
    pre_step: PreStep | None,
) -> None:
    if pre_step is not None and not callable(pre_step):
        raise TypeError(f"pre_step must be a function or None, not {pre_step!r}")
    if isinstance(max_norm, str):
        raise TypeError(f"max_norm must be a number or None, not {max_norm!r}")
    if max_norm is not None and not (max_norm > 0 and not math.isnan(max_norm)):
        raise ValueError(f"max_norm must be above 0, not {max_norm}; None does not clip")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate must be a whole number of at least 1, not {accumulate!r}")
    if accumulate_dtype not in (None, torch.float32):
        raise ValueError(f"accumulate_dtype must be torch.float32 or None, not {accumulate_dtype}")
    if accumulate_dtype is not None and accumulate == 1:
        raise ValueError("accumulate_dtype needs accumulate, the number of micro-batches of a step")
    if accumulate_dtype is not None and pre_step is not None:
        raise ValueError(
            "pre_step is given .grad, which does not hold the accumulated gradient with "
            "accumulate_dtype; use one of them"
        )
    if grad_scaler is None:
        return
    if not isinstance(grad_scaler, torch.amp.GradScaler):
        raise TypeError(f"grad_scaler must be a GradScaler, not {type(grad_scaler).__name__}")
    if any(group["capturable"] for group in optimizer.param_groups):
        raise ValueError(
            "grad_scaler looks at each gradient first, which capturable=True rules out"
        )


def _find_slots(model: nn.Module, optimizer: FlashOptimizer) -> list[Slot]:
    places = {
        id(param): (group, position)
        for group in reversed(range(len(optimizer.param_groups)))
        for position, param in reversed(list(enumerate(optimizer.param_groups[group]["params"])))
    }
    slots: list[Slot] = []
    for name, param in model.named_parameters():
        if not param.requires_grad or id(param) not in places:
            continue
        if released_name(param) is not None:
            raise RuntimeError(
                f"parameter '{name}' is released by another optimizer already; a parameter can be "
                "stepped by one of them only"
            )
        slots.append(Slot(param, name, len(slots), *places[id(param)]))
    if not slots:
        raise ValueError(
            "the optimizer has no parameter of this model that requires a gradient; make the "
            "optimizer from model.parameters()"
        )
    found = {id(slot.param) for slot in slots}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if getattr(module, "sparse", False) is True and id(weight) in found:
            raise RuntimeError(
                f"module '{name}' has sparse gradients, which cannot be stepped; make it with "
                "sparse=False"
            )
    return slots
