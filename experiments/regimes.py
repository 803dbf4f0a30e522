"""Streams of gradients that are known to break 8-bit states, and exact optimizers in fp64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

BETA1: Final = 0.9
LION_BETAS: Final = (0.9, 0.99)
MOMENTUM: Final = 0.9
EPS: Final = 1e-8
QUARTERS: Final = 4


@dataclass(frozen=True)
class Regime:
    """Normal gradients of a size, and what is odd about them."""

    name: str
    sigma: float = 1e-4
    drop: float = 1.0  # half-way they become smaller by this
    spread: float = 1.0  # sizes of elements differ by up to this, evenly in the logarithm
    spike: float = (
        1.0  # one gradient of one element in 64 is larger by this, a quarter into the run
    )
    share: float = 1.0  # of gradients that are not 0


REGIMES: Final = (
    Regime("noise 1e-4"),
    Regime("noise 1e-5", 1e-5),
    Regime("noise 1e-6", 1e-6),
    Regime("noise 1e-7", 1e-7),
    Regime("noise 1e-8", 1e-8),
    Regime("drop 30x", drop=30),
    Regime("spread 100x", spread=100),
    Regime("spread 1000x", spread=1000),
    Regime("spike 3000x", spike=3000),
    Regime("2 % sparse", share=0.02),
)


class Gradients:
    """bf16 gradients ``[regimes, rows, row_length]``, which every optimizer can take as they are.

    Rounded to bf16, they are the same to the bit for 16-bit and for fp32 weights.
    """

    def __init__(self, shape: tuple[int, int], steps: int, generator: torch.Generator) -> None:
        self._steps, self._step, self._generator = steps, 0, generator
        full = (len(REGIMES), *shape)
        scales = torch.empty(full, device=generator.device)
        for scale, regime in zip(scales, REGIMES, strict=True):
            exponent = torch.rand(shape, generator=generator, device=generator.device)
            scale.copy_(regime.sigma * torch.pow(1 / regime.spread, exponent))
        self._scales = scales
        self._noise = torch.empty_like(scales)
        self.bf16 = torch.empty_like(scales, dtype=torch.bfloat16)
        self.fp32 = torch.empty_like(scales)

    def draw(self) -> None:
        """The next step's, into `bf16` and `fp32`."""
        self._noise.normal_(generator=self._generator).mul_(self._scales)
        for index, regime in enumerate(REGIMES):
            if regime.drop != 1 and self._step == self._steps // 2:
                self._scales[index].div_(regime.drop)
                self._noise[index].div_(regime.drop)
            if regime.spike != 1 and self._step == self._steps // 4:
                self._noise[index].view(-1)[17::64] *= regime.spike
            if regime.share != 1:
                mask = torch.rand(
                    self._noise.shape[1:], generator=self._generator, device=self._noise.device
                )
                self._noise[index] *= mask < regime.share
        self.bf16.copy_(self._noise)
        self.fp32.copy_(self.bf16)
        self._step += 1


class Reference:
    """An optimizer in fp64: the update that a weight gets, in units of the learning rate."""

    def __init__(self, like: Tensor, beta2s: tuple[float, ...] = ()) -> None:
        self._m = torch.zeros_like(like, dtype=torch.float64)
        self._v = torch.zeros((len(beta2s), *like.shape), dtype=torch.float64, device=like.device)
        self._beta2s = beta2s
        self._step = 0

    def adamw(self, g: Tensor) -> Tensor:
        """``[beta2s, *]``."""
        self._step += 1
        self._m.lerp_(g, 1 - BETA1)
        square = g * g
        for v, beta2 in zip(self._v, self._beta2s, strict=True):
            v.lerp_(square, 1 - beta2)
        roots = torch.empty_like(self._v)
        for root, v, beta2 in zip(roots, self._v, self._beta2s, strict=True):
            torch.sqrt(v / (1 - beta2**self._step), out=root)
        return (self._m / (1 - BETA1**self._step)) / roots.add_(EPS)

    def lion(self, g: Tensor) -> Tensor:
        """``[1, *]``."""
        update = torch.lerp(self._m, g, 1 - LION_BETAS[0]).sign_()
        self._m.lerp_(g, 1 - LION_BETAS[1])
        return update[None]

    def sgd(self, g: Tensor) -> Tensor:
        """``[1, *]``."""
        return self._m.mul_(MOMENTUM).add_(g)[None].clone()


class Score:
    """Compares updates ``[N, *]`` with exact ones over a run, in quarters of it."""

    def __init__(self, count: int, steps: int, device: torch.device) -> None:
        self._steps, self._step = steps, 0
        sums = torch.zeros((QUARTERS, count), dtype=torch.float64, device=device)
        self._error, self._own, self._exact = sums, sums.clone(), sums.clone()
        self._largest = torch.zeros(count, dtype=torch.float64, device=device)
        self._largest_exact = self._largest.clone()

    def add(self, update: Tensor, exact: Tensor) -> None:
        """One step's."""
        quarter = QUARTERS * self._step // self._steps
        own, reference = update.flatten(1), exact.flatten(1)
        self._error[quarter] += (own - reference).square_().sum(1)
        self._own[quarter] += own.square().sum(1)
        self._exact[quarter] += reference.square().sum(1)
        torch.maximum(self._largest, own.abs().amax(1), out=self._largest)
        torch.maximum(self._largest_exact, reference.abs().amax(1), out=self._largest_exact)
        self._step += 1

    def rows(self) -> list[dict[str, Any]]:
        """For each of N: relative L2 error, ratio of norms, largest update."""
        return [self._row(index) for index in range(len(self._largest))]

    def _row(self, index: int) -> dict[str, Any]:
        error, own, exact = (
            sums[:, index].tolist() for sums in (self._error, self._own, self._exact)
        )
        quarters = [math.sqrt(e / x) for e, x in zip(error, exact, strict=True)]
        ratios = [math.sqrt(o / x) for o, x in zip(own, exact, strict=True)]
        return {
            "error": max(quarters) if all(map(math.isfinite, quarters)) else math.inf,
            "error_by_quarter": quarters,
            "norm_ratio_by_quarter": ratios,
            "norm_ratio": math.sqrt(sum(own) / sum(exact)),
            "largest": float(self._largest[index]),
            "largest_fp64": float(self._largest_exact[index]),
        }
