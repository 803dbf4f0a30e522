"""One contender at work on one case: made, warmed up, checked, and then sampled."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench import tensors
from bench.contenders import Contender
from bench.measure import Clock, Metric, Statistics, calls_per_sample
from bench.shapes import Shapes, elements
from bench.tensors import Gradients

WARM_UP_STEPS: Final = 3
# Relative L2 error of our first updates against torch's in fp32. Codes make a few per cent; a step
# that did something else would be far outside.
LARGEST_UPDATE_ERROR: Final = 0.2


class WrongResultError(Exception):
    """A step did not do what it should; its time means nothing."""


@dataclass
class Entrant:
    """A contender's optimizer and what was measured of it."""

    contender: Contender
    params: list[nn.Parameter]
    optimizer: Optimizer
    first_step_ms: float | None = None
    second_step_ms: float | None = None
    scratch_bytes: int | None = None  # that a step allocates for a while; known on a GPU
    update: Tensor | None = None  # of sampled weights in the steps of the warm-up
    update_error: float | None = None
    step_seconds: float = 0.0
    counts: dict[Metric, int] = field(default_factory=dict)
    samples: dict[Metric, list[float]] = field(default_factory=dict)

    def warm_up(self, gradients: Gradients, clock: Clock) -> None:
        """Takes the first steps, each with other gradients, and checks what they do.

        Raises:
            WrongResultError: a weight is not finite, or weights or our state did not change.
        """
        before = tensors.sample(self.params)
        seconds = []
        state: list[Tensor] = []
        for step in range(WARM_UP_STEPS):
            gradients.draw(step, self.params)
            clock.wait()
            allocated = _watch_memory(clock.device)
            begin = time.perf_counter()
            self.optimizer.step()
            clock.wait()
            seconds.append(time.perf_counter() - begin)
            if clock.device.type == "cuda":
                self.scratch_bytes = torch.cuda.max_memory_allocated(clock.device) - allocated
            if step == WARM_UP_STEPS - 2:
                state = self._sampled_state()
        self.first_step_ms, self.second_step_ms = 1e3 * seconds[0], 1e3 * seconds[1]
        self.step_seconds = min(seconds[1:])
        self.update = tensors.sample(self.params) - before
        self._check(state)

    def share(self, other: Entrant) -> None:
        """Takes another's parameters and state, which must have been stepped."""
        self.optimizer.state = other.optimizer.state
        for _ in range(2):
            begin = time.perf_counter()
            self.optimizer.step()
            self.step_seconds = time.perf_counter() - begin

    def compare(self, reference: Entrant) -> None:
        """Compares the updates of the warm-up with those of an optimizer in fp32.

        Raises:
            WrongResultError: ours differs too much.
        """
        if self.update is None or reference.update is None:
            return
        difference = torch.linalg.vector_norm(self.update - reference.update)
        self.update_error = float(difference / torch.linalg.vector_norm(reference.update))
        if self.contender.ours and not self.update_error <= LARGEST_UPDATE_ERROR:
            raise WrongResultError(f"its update differs from torch's by {self.update_error:.2f}")

    def prepare(self, metrics: tuple[Metric, ...], seconds_per_sample: float) -> None:
        """Decides how many steps make a sample."""
        for metric in metrics:
            self.counts[metric] = calls_per_sample(self.step_seconds, seconds_per_sample)
            self.samples[metric] = []

    def take_sample(self, metric: Metric, clock: Clock) -> None:
        """Times some steps."""
        self.samples[metric].append(clock.sample(metric, self.optimizer.step, self.counts[metric]))

    def result(self, shapes: Shapes) -> dict[str, Any]:
        """Everything measured, ready for JSON."""
        count = elements(shapes)
        times = {
            metric: vars(Statistics.of(samples, self.counts[metric]))
            for metric, samples in self.samples.items()
        }
        return {
            "state_bytes_per_parameter": tensors.state_bytes(self.optimizer) / count,
            "moved_bytes": tensors.moved_bytes(self.optimizer, self.params),
            "scratch_bytes": self.scratch_bytes,
            "first_step_ms": self.first_step_ms,
            "second_step_ms": self.second_step_ms,
            "update_error": self.update_error,
            "ms": times,
        }

    def _sampled_state(self) -> list[Tensor]:
        return [tensors.sample([t]) for t in tensors.largest_state(self.optimizer, self.params)]

    def _check(self, state: list[Tensor]) -> None:
        # A sum is finite only if all its terms are, and takes no memory.
        sums = torch.stack([param.detach().sum(dtype=torch.float32) for param in self.params])
        if not bool(torch.isfinite(sums).all()):
            raise WrongResultError("a weight is not finite")
        if self.update is None or not bool(self.update.any()):
            raise WrongResultError("no weight changed")
        if self.contender.ours:
            now = self._sampled_state()
            if not state or any(torch.equal(a, b) for a, b in zip(state, now, strict=True)):
                raise WrongResultError("its state did not change in a step")


def make(contender: Contender, shapes: Shapes, device: torch.device) -> Entrant:
    """A contender with parameters of its own."""
    params = tensors.parameters(shapes, contender.weight_dtype, device)
    return Entrant(contender, params, contender.make(params))


def _watch_memory(device: torch.device) -> int:
    """Bytes allocated now; the peak counts from here."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
