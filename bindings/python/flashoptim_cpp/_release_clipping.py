"""Clipping by the global norm when gradients are never all there at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._sharding import is_dtensor, local_of

_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class NormClipper:
    """Scales gradients by ``min(1, max_norm / (norm + 1e-6))``.

    The norm is that of the previous step, or the one that was measured for this step. Norms are
    fp32 and stay on the device; nothing waits for them.
    """

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm
        self._total: Tensor | None = None  # of the last step
        self._previous: Tensor | None = None  # the last finite one: clips the next step
        self._measured: Tensor | None = None  # of this step
        self._norms: dict[int, Tensor] = {}  # of this step so far, by the parameter's place
        self._coefficients: dict[torch.device, Tensor | None] = {}

    @property
    def total_norm(self) -> Tensor | None:
        """Norm of all gradients of the last step, before clipping."""
        return self._total

    @total_norm.setter
    def total_norm(self, norm: Tensor | float) -> None:
        self._total = torch.as_tensor(norm, dtype=torch.float32).detach().clone()
        self._previous = None
        self._keep_finite(self._total)
        self._coefficients = {}

    def record(self, place: int, gradient: Tensor) -> None:
        """Adds a gradient to the norm of this step."""
        if gradient.is_complex():
            gradient = torch.view_as_real(gradient)
        self._norms[place] = torch.linalg.vector_norm(gradient, dtype=torch.float32)

    def clip(self, place: int, gradient: Tensor) -> None:
        """Scales a gradient in place; adds it to the norm of this step unless that is known."""
        if self._measured is None:
            self.record(place, gradient)
        coefficient = self._coefficient(gradient.device)
        if coefficient is not None:
            local_of(gradient).mul_(coefficient)

    def finish_measuring(self, scale: float) -> Tensor | None:
        """Takes the recorded gradients, divided by `scale`, for the norm of the coming step."""
        self._measured = self._take_total(scale)
        self._coefficients = {}
        return self._measured

    def finish_step(self, scale: float) -> None:
        """Makes the norm of the gradients of this step that of the previous one."""
        total = self._take_total(scale) if self._measured is None else self._measured
        self._measured = None
        self._coefficients = {}
        if total is not None:
            self._total = total
            self._keep_finite(total)

    def forget(self) -> None:
        """Drops what has been recorded since the last step."""
        self._norms = {}

    def _take_total(self, scale: float) -> Tensor | None:
        norms = [self._norms[place] for place in sorted(self._norms)]
        self._norms = {}
        return total_of(norms) / scale if norms else None

    def _keep_finite(self, total: Tensor) -> None:
        # Without a norm yet, 0 clips nothing.
        last = torch.zeros_like(total) if self._previous is None else self._previous
        self._previous = torch.where(total.isfinite(), total, last.to(total.device))

    def _coefficient(self, device: torch.device) -> Tensor | None:
        if device not in self._coefficients:
            if self._measured is None and device.type == "cuda":
                _check_capture()
            norm = self._previous if self._measured is None else self._measured
            coefficient = None
            if norm is not None:
                coefficient = (self.max_norm / (norm + _EPS)).clamp(max=1.0).to(device)
                if device.type == "cpu" and float(coefficient) == 1.0:
                    coefficient = None
            self._coefficients[device] = coefficient
        return self._coefficients[device]


def _check_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph is being captured, and every replay would clip by the norm of the step "
            "before the capture; capture handle.measure() and a second backward pass, or leave "
            "max_norm out"
        )


def total_of(norms: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients from the norm of each, in the order in which torch adds them.

    Norms of sharded gradients are those of the shards until here: one reduction for each mesh.
    """
    together: dict[Any, list[Tensor]] = {}
    for norm in norms:
        together.setdefault(norm.device_mesh if is_dtensor(norm) else None, []).append(norm)
    totals = [_plain_total(some) for some in together.values()]
    return totals[0] if len(totals) == 1 else _plain_total(totals)


def _plain_total(norms: list[Tensor]) -> Tensor:
    first, *others = norms
    total = torch.linalg.vector_norm(torch.stack([first, *(n.to(first.device) for n in others)]))
    whole: Tensor = total.full_tensor() if is_dtensor(total) else total
    return whole
