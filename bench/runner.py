"""Times all contenders of a case in turn, round after round."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from bench import entrant, machine
from bench.cases import Case
from bench.contenders import CONTENDERS, TORCH, Contender
from bench.entrant import Entrant
from bench.measure import Clock, Copy, Metric, Statistics, calls_per_sample
from bench.shapes import elements
from bench.tensors import Gradients

_LEAST_ROUNDS: Final = 3
_GIB: Final = 1 << 30


class Budget:
    """The time that all cases may take together."""

    def __init__(self, seconds: float, cases: int) -> None:
        self._end = time.monotonic() + seconds
        self._share = seconds / (2 * max(1, cases))
        self.cases_left = cases

    @property
    def spent(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self._end

    @property
    def peers_allowed(self) -> bool:
        """Whether enough is left for what later cases need without peers."""
        return time.monotonic() + self._share * (self.cases_left - 1) < self._end


@dataclass(frozen=True)
class Options:
    """How to time."""

    rounds: int
    seconds_per_sample: float
    copy_bytes: int  # of each of the two buffers
    peers: frozenset[str] = field(default=frozenset())  # packages


class Run:
    """One case under way."""

    def __init__(self, case: Case, clock: Clock, options: Options, budget: Budget) -> None:
        self._case, self._clock, self._options, self._budget = case, clock, options, budget
        self._parameters = elements(case.shapes)
        self._gradients = Gradients(case.shapes, clock.device)
        self._entrants: dict[str, Entrant] = {}
        self._left_out: dict[str, dict[str, str]] = {}
        self._copy: Copy | None = None
        self._copy_samples: list[float] = []
        self._copies = 1

    def result(self) -> dict[str, Any]:
        """Sets up, checks and times; what goes wrong with one contender is in its result."""
        for key in self._case.contenders:
            self._enter(key)
        self._compare()
        metrics = self._clock.metrics(self._case.metrics)
        if self._entrants:
            self._prepare_copy()
            self._time(metrics)
        copy = self._copy_result()
        return {
            "name": self._case.name,
            "title": self._case.title,
            "tensors": len(self._case.shapes),
            "parameters": self._parameters,
            "metric": metrics[0],
            "copy": copy,
            "contenders": [
                self._contender_result(k, metrics[0], copy) for k in self._case.contenders
            ],
        }

    def _enter(self, key: str) -> None:
        contender = CONTENDERS[key]
        reason = self._reason_to_skip(contender)
        if reason:
            self._leave_out(key, "skipped", reason)
            return
        try:
            if contender.shares is not None:
                other = self._entrants[contender.shares]
                made = Entrant(contender, other.params, contender.make(other.params))
                made.share(other)
            else:
                made = entrant.make(contender, self._case.shapes, self._clock.device)
                self._reserve(contender)
                made.warm_up(self._gradients, self._clock)
        except Exception as error:
            self._fail(key, error)
        else:
            self._entrants[key] = made

    def _reason_to_skip(self, contender: Contender) -> str:
        if contender.peer:
            if contender.package not in self._options.peers:
                return "not asked for"
            if not self._budget.peers_allowed:
                return "no time left"
        if contender.shares is not None and contender.shares not in self._entrants:
            return f"{CONTENDERS[contender.shares].label} did not run"
        needed = int(contender.room * self._parameters) + self._gradients.missing_bytes(
            contender.weight_dtype, self._parameters
        )
        free = machine.available_memory(self._clock.device)
        if needed > 0.95 * free:
            return f"needs {needed / _GIB:.1f} GiB of memory, and {free / _GIB:.1f} are free"
        return ""

    def _reserve(self, contender: Contender) -> None:
        """Leaves memory for state in torch's cache, where a backward pass leaves some too."""
        if self._clock.device.type == "cuda":
            size = int((contender.room - contender.weight_dtype.itemsize) * self._parameters)
            torch.empty(size, dtype=torch.uint8, device=self._clock.device)

    def _compare(self) -> None:
        for key, made in list(self._entrants.items()):
            reference = self._reference(made.contender)
            if reference is None or reference is made:
                continue
            try:
                made.compare(reference)
            except entrant.WrongResultError as error:
                self._fail(key, error)

    def _reference(self, contender: Contender) -> Entrant | None:
        for other in self._entrants.values():
            theirs = other.contender
            exact = theirs.package == TORCH and theirs.weight_dtype == torch.float32
            if exact and theirs.rule == contender.rule and other.update is not None:
                return other
        return None

    def _prepare_copy(self) -> None:
        size = min(self._options.copy_bytes, machine.available_memory(self._clock.device) // 4)
        self._copy = Copy(self._clock.device, size)
        self._copy()
        self._clock.wait()
        begin = time.perf_counter()
        self._copy()
        self._clock.wait()
        seconds = time.perf_counter() - begin
        self._copies = calls_per_sample(seconds, self._options.seconds_per_sample)

    def _time(self, metrics: Sequence[Metric]) -> None:
        for made in self._entrants.values():
            made.prepare(tuple(metrics), self._options.seconds_per_sample)
        gc.collect()
        gc.disable()
        try:
            for number in range(self._options.rounds):
                if number >= _LEAST_ROUNDS and self._budget.spent:
                    break
                self._round(metrics)
        finally:
            gc.enable()

    def _round(self, metrics: Sequence[Metric]) -> None:
        for metric in metrics:
            for key, made in list(self._entrants.items()):
                try:
                    made.take_sample(metric, self._clock)
                except Exception as error:
                    self._fail(key, error)
        if self._copy is not None:
            metric = "device" if self._clock.device.type == "cuda" else "wall"
            self._copy_samples.append(self._clock.sample(metric, self._copy, self._copies))

    def _copy_result(self) -> dict[str, Any] | None:
        if self._copy is None or not self._copy_samples:
            return None
        times = Statistics.of(self._copy_samples, self._copies)
        moved = self._copy.moved_bytes
        return {"moved_bytes": moved, "gb_per_s": moved / times.median / 1e6, "ms": vars(times)}

    def _contender_result(
        self, key: str, metric: Metric, copy: dict[str, Any] | None
    ) -> dict[str, Any]:
        contender = CONTENDERS[key]
        head = {"key": key, "label": contender.label, "package": contender.package}
        if key in self._left_out:
            return head | self._left_out[key]
        result = head | {"status": "ok"} | self._entrants[key].result(self._case.shapes)
        rate = result["moved_bytes"] / result["ms"][metric]["median"] / 1e6
        return result | {"gb_per_s": rate, "of_copy": rate / copy["gb_per_s"] if copy else None}

    def _fail(self, key: str, error: Exception) -> None:
        lines = f"{type(error).__name__}: {error}".split("\n")
        self._leave_out(key, "failed", lines[0][:300])

    def _leave_out(self, key: str, status: str, reason: str) -> None:
        self._entrants.pop(key, None)
        self._left_out[key] = {"status": status, "reason": reason}
        if reason != "not asked for":
            note(f"  {CONTENDERS[key].label}: {status}: {reason}")


def run(case: Case, clock: Clock, options: Options, budget: Budget) -> dict[str, Any]:
    """Times one case and frees its memory; the result is ready for JSON."""
    note(f"{case.title} ({len(case.shapes)} tensors, {elements(case.shapes):,} parameters)")
    begin = time.monotonic()
    result = Run(case, clock, options, budget).result()
    gc.collect()
    if clock.device.type == "cuda":
        torch.cuda.empty_cache()
    budget.cases_left -= 1
    return result | {"seconds": round(time.monotonic() - begin, 1)}


def note(message: str) -> None:
    """Tells what happens, apart from the results."""
    print(message, file=sys.stderr, flush=True)
