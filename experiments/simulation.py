"""AdamW with 8-bit moments in torch operations, with any one of its choices changed.

With all choices left alone it gives the bits of the real step (docs/format.md, sections 3, 5.1 and
8.1), so that what a change does is due to that change alone. Row lengths must be multiples of the
group. Only weights that are put back to zero after each step are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from experiments.regimes import BETA1, EPS

_MASK32: Final = 0xFFFFFFFF
_FLOORS: Final = {"first": 2.0**-72, "second": 2.0**-100}
_TOPS: Final = {"first": 127.0, "second": 255.0}
_SHIFTS: Final = {"first": 1, "second": 2}
_SECOND_MOMENT_BYTES: Final = 1  # purpose of the random stream

Moment = Literal["first", "second"]
Codes = Literal["root", "linear"]


@dataclass(frozen=True)
class Choices:
    """How moments are kept; the defaults are those of codec `root`."""

    name: str = "as it is"
    group: int = 64
    first: Codes = "root"
    second: Codes = "root"
    scale: torch.dtype = torch.float32  # of the second moment's root, where it is narrower
    stochastic: bool = True  # rounding of the second moment


def image(x: Tensor) -> Tensor:
    """The bits of floats."""
    return x.view(torch.int32)


def fma(a: Tensor | float, b: Tensor, c: Tensor | float) -> Tensor:
    """``a * b + c`` rounded once to fp32, of numbers that fp32 holds.

    The product is exact in fp64; a sum in fp64 that is rounded to odd rounds to fp32 as the exact
    one does.
    """
    product = b.double() * a
    addend = torch.as_tensor(c, dtype=torch.float64, device=b.device)
    total = product + addend
    back = total - product
    rest = (product - (total - back)) + (addend - back)
    bits = total.view(torch.int64)
    away = torch.where((rest > 0) == (total > 0), 1, -1)
    bits = bits + torch.where((rest != 0) & (bits & 1 == 0), away, 0)
    return bits.view(torch.float64).float()


def mix(x: Tensor) -> Tensor:
    """The hash of section 3, of 32-bit numbers in int64."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _MASK32
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & _MASK32
    return x ^ (x >> 16)


def random_bytes(keys: Tensor, step: int, count: int, seed: int = 0) -> Tensor:
    """int32 ``[keys, count]``: the byte of each element of tensors whose rows fill their groups."""
    h = torch.full_like(keys, _SECOND_MOMENT_BYTES)
    for word in (seed & _MASK32, seed >> 32, keys, torch.zeros_like(keys), step, 0):
        h = mix((h ^ word) + 0x9E3779B9 & _MASK32)
    quads = torch.arange(count // 4, device=keys.device)
    words = mix(quads[None, :] ^ h[:, None] ^ mix(torch.zeros_like(quads)))
    shifts = torch.arange(0, 32, 8, device=keys.device)
    return (words[..., None] >> shifts & 0xFF).flatten(1).int()


class AdamW:
    """Stacked tensors ``[N, rows, row_length]``, each with a beta2."""

    def __init__(self, like: Tensor, beta2s: Sequence[float], choices: Choices, lr: float) -> None:
        self._choices, self._lr, self._step = choices, lr, 0
        self._beta2s = list(beta2s)
        self._keys = torch.arange(len(like), device=like.device)
        self._shape = like.shape
        self.m = torch.zeros_like(like)
        self.v = torch.full_like(like, _FLOORS["second"])

    def step(self, g: Tensor) -> Tensor:
        """For stacked fp32 gradients the update in units of the learning rate, fp64."""
        self._step += 1
        kappas = [1 / (1 - _power(beta2, self._step)) ** 0.5 for beta2 in self._beta2s]
        m = fma(_f32(BETA1), self.m, g * _f32(1 - BETA1))
        beta2 = self._column(self._beta2s).double()
        rest = self._column([1 - b for b in self._beta2s])
        v = fma(beta2, self.v, fma((g * rest).double(), g, _FLOORS["second"]))
        # Not every torch rounds fp32 roots correctly; rounding an fp64 root does.
        d = fma(self._column(kappas).double(), v.double().sqrt().float(), _f32(EPS))
        alpha = _f32(self._lr / (1 - _power(BETA1, self._step)))
        self.m = self._kept(m, "first")
        self.v = self._kept(v, "second")
        return ((m * alpha) * d.reciprocal()).double() / self._lr

    def _column(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.m.device)[:, None, None]

    def _kept(self, values: Tensor, moment: Moment) -> Tensor:
        """What is left of a moment after it was encoded and decoded."""
        size, codes = self._choices.group, getattr(self._choices, moment)
        grouped = values.view(len(values), -1, size)
        magnitude = grouped.abs()
        scale = self._scale(magnitude.amax(-1, keepdim=True), moment)
        y = _compand(magnitude, scale, moment) if codes == "root" else None
        if y is None:
            y = magnitude * (_TOPS[moment] / scale)
        if moment == "first":
            whole = y.round()
        else:
            u = random_bytes(self._keys, self._step, grouped[0].numel())
            if not self._choices.stochastic:
                u = torch.full_like(u, 128)
            fine = (256 * y.clamp(min=1)).round().int()
            whole = (fine + u.view_as(grouped) >> 8).float()
        whole = whole.clamp(max=_TOPS[moment])  # a scale that was rounded down
        kept = _expand(whole, scale, moment) if codes == "root" else whole * (scale / _TOPS[moment])
        kept = torch.where((whole == 0) | (scale == 0), 0.0, kept)
        return (
            torch.copysign(kept, grouped).view(self._shape)
            if moment == "first"
            else (kept.view(self._shape))
        )

    def _scale(self, largest: Tensor, moment: Moment) -> Tensor:
        mask = ~((1 << _SHIFTS[moment]) - 1)
        scale = (image(largest.clamp(min=_FLOORS[moment])) & mask).view(torch.float32)
        if self._choices.scale == torch.float32:
            return scale
        if moment == "first":
            return scale.to(self._choices.scale).float()
        return scale.sqrt().to(self._choices.scale).float().square()


def _compand(magnitude: Tensor, scale: Tensor, moment: Moment) -> Tensor:
    top = torch.full_like(scale, _TOPS[moment])
    shift = _SHIFTS[moment]
    bits = (image(magnitude) >> shift) + (image(top) - (image(scale) >> shift))
    return bits.view(torch.float32)


def _expand(whole: Tensor, scale: Tensor, moment: Moment) -> Tensor:
    top = torch.full_like(scale, _TOPS[moment])
    shift = _SHIFTS[moment]
    bits = image(whole) - (image(top) - (image(scale) >> shift)) << shift
    return bits.view(torch.float32)


def _power(base: float, exponent: int) -> float:
    """By squaring, as section 8.1 has it."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _f32(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float32))
