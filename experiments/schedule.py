"""Training runs, spread over devices: one process for each, which takes the next run when free.

A run that fails is recorded, and the others go on; so do they when a process dies.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, cast

import torch

Job = dict[str, Any]  # what is to be done; "key" names it and "settings" must equal to be the same
Record = dict[str, Any]  # what came of it: the job, "status", "seconds", and what was measured

OK: Final = "ok"
DIVERGED: Final = "diverged"  # the loss is not finite: done, too
STOPPED: Final = "stopped"  # at the end of the time
FAILED: Final = "failed"
SKIPPED: Final = "skipped"  # it cannot be run here

_DONE: Final = (OK, DIVERGED)
_MARGIN: Final = 1.1  # of the longest run so far: what the next one is expected to take
_GRACE: Final = 30.0  # seconds after the end of the time in which runs may stop by themselves
_MOST_FAILURES: Final = 3  # of one device in a row


@dataclass
class _Worker:
    """A process with a device."""

    process: BaseProcess
    pipe: Connection
    device: str
    job: Job | None = None
    begun: float = field(default_factory=time.monotonic)
    warm: bool = False  # it has loaded and compiled what its runs need


def pending(jobs: Sequence[Job], records: Sequence[Record]) -> list[Job]:
    """Those that have not been done with the same settings yet."""
    done = {r["key"]: r["settings"] for r in records if r["status"] in _DONE}
    return [job for job in jobs if done.get(job["key"]) != job["settings"]]


def merged(records: Sequence[Record], new: Record) -> list[Record]:
    """The records with one more, in place of an older one of the same key.

    One that was not completed does not replace a completed one of the same settings.
    """
    for old in records:
        same = old["key"] == new["key"] and old["settings"] == new["settings"]
        if same and old["status"] in _DONE and new["status"] not in _DONE:
            return list(records)
    return [*(r for r in records if r["key"] != new["key"]), new]


def devices(kind: torch.device, count: int) -> list[str]:
    """Names of that many devices of a kind."""
    return [f"cuda:{i}" if kind.type == "cuda" else "cpu" for i in range(count)]


def run(
    jobs: Sequence[Job],
    work: str,
    on: Sequence[str],
    seconds: float,
    done: Callable[[Record], None],
) -> None:
    """Runs jobs in their order until all are done or the time is up.

    Args:
        jobs: what to do.
        work: ``module:function`` that takes a job, a device and the time (of ``time.time()``) at
            which it has to stop, and returns what is to be recorded.
        on: the devices, one process each.
        seconds: for everything. No job is begun that would probably not be completed.
        done: gets each record, in this process.
    """
    Pool(list(jobs), work, seconds, done).run(on)


class Pool:
    """The processes and what is left to do."""

    def __init__(
        self, jobs: list[Job], work: str, seconds: float, done: Callable[[Record], None]
    ) -> None:
        self._jobs = jobs
        self._work = work
        self._end = time.monotonic() + seconds
        self._done = done
        self._longest = 0.0
        self._warm = False  # whether that was of a process that had done a run before
        self._failures: dict[str, int] = {}
        self._workers: list[_Worker] = []

    def run(self, on: Sequence[str]) -> None:
        """Until all is done or the time is up."""
        try:
            for device in on[: len(self._jobs)]:
                self._give(self._start(device))
            while busy := [worker for worker in self._workers if worker.job]:
                left = self._end + _GRACE - time.monotonic()
                if left <= 0:
                    break
                ready = wait([worker.pipe for worker in busy], timeout=left)
                for worker in busy:
                    if worker.pipe in ready:
                        self._take(worker)
        finally:
            for worker in self._workers:
                self._stop(worker)

    def _start(self, device: str) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._work, device))
        process.start()
        theirs.close()
        worker = _Worker(process, ours, device)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker) -> None:
        """The next job, if there is one and time for it."""
        worker.job = None
        left = self._end - time.monotonic()
        if not self._jobs or left <= 0 or left < _MARGIN * self._longest:
            return
        worker.job, worker.begun = self._jobs.pop(0), time.monotonic()
        worker.pipe.send((worker.job, time.time() + left))

    def _take(self, worker: _Worker) -> None:
        """What came of a job."""
        job = cast(Job, worker.job)
        try:
            outcome = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(timeout=5)
            code = worker.process.exitcode
            outcome = {"status": FAILED, "error": f"the process ended with status {code}"}
        seconds = time.monotonic() - worker.begun
        self._done({**job, "device": worker.device, "seconds": round(seconds, 1), **outcome})
        if outcome["status"] != FAILED:
            if outcome["status"] == OK:
                if worker.warm or not self._longest:
                    self._longest = seconds if not self._warm else max(self._longest, seconds)
                    self._warm = worker.warm
                worker.warm = True
            self._failures[worker.device] = 0
            self._give(worker)
            return
        # After an error of its device a process can do nothing more.
        worker.job = None
        self._stop(worker)
        self._workers.remove(worker)
        failures = self._failures[worker.device] = self._failures.get(worker.device, 0) + 1
        if self._jobs and failures < _MOST_FAILURES and self._end > time.monotonic():
            self._give(self._start(worker.device))

    @staticmethod
    def _stop(worker: _Worker) -> None:
        worker.pipe.close()
        if worker.job is None:
            worker.process.join(timeout=5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _serve(pipe: Connection, work: str, device: str) -> None:
    """The process of one device: does what it is told until the pipe is closed."""
    module, _, function = work.partition(":")
    do = getattr(importlib.import_module(module), function)
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(torch.device(device))
    while True:
        try:
            job, end = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            outcome = do(job, torch.device(device), end)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            outcome = {"status": FAILED, "error": f"{type(error).__name__}: {error}"[:2000]}
        try:
            pipe.send(outcome)
        except OSError:
            return
        if outcome["status"] == FAILED:
            # Without the interpreter's shutdown, which may hang on a device in error.
            pipe.close()
            os._exit(0)
