"""Runs cases on several processes that form a gloo group, many cases to one start of them.

A case is a function of a module ``cases_*.py``, marked with `case`, that every rank calls with a
directory which all ranks share. It fails if it raises on any rank.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

Case = Callable[[Path], None]

_PATIENCE = timedelta(seconds=60)  # of a rank with the others
_LONGEST_RUN = 400.0  # seconds, of all cases of one group


def case(*worlds: int) -> Callable[[Case], Case]:
    """Marks a case, to be run by groups of so many ranks."""

    def mark(function: Case) -> Case:
        function.worlds = worlds  # type: ignore[attr-defined]
        return function

    return mark


def names_of(module: str, world: int) -> list[str]:
    """The cases of a module for a number of ranks."""
    members = vars(importlib.import_module(module)).items()
    return [name for name, value in members if world in getattr(value, "worlds", ())]


def worlds_of(module: str) -> list[int]:
    """The numbers of ranks that cases of a module ask for."""
    members = vars(importlib.import_module(module)).values()
    return sorted({world for value in members for world in getattr(value, "worlds", ())})


def check(module: str, world: int) -> None:
    """Runs all cases of a module for a number of ranks; fails with what those that fail say."""
    with tempfile.TemporaryDirectory() as directory:
        run(module, world, names_of(module, world), Path(directory))


def run(module: str, world: int, names: Sequence[str], directory: Path) -> None:
    """Runs cases in new processes, and fails with the messages of the ranks on which one failed.

    Args:
        module: of the cases.
        world: number of processes.
        names: of the cases, which run in this order.
        directory: that the ranks, and several runs, share.
    """
    with tempfile.TemporaryDirectory() as private:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        processes = []
        for rank in range(world):
            arguments = [module, str(world), str(rank), private, str(directory), *names]
            with (Path(private) / f"output-{rank}").open("w") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, __file__, *arguments],
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        try:
            for process in processes:
                process.wait(timeout=_LONGEST_RUN)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                process.kill()
                process.wait()
        errors = [error for name in names for error in _errors(Path(private), name, world)]
    assert not errors, "\n".join(errors)


def _errors(private: Path, name: str, world: int) -> Iterator[str]:
    for rank in range(world):
        report = private / f"{name}-{rank}.json"
        if not report.exists():
            output = (private / f"output-{rank}").read_text()[-3000:]
            yield f"{name}: rank {rank} of {world} did not get to the end; its output:\n{output}"
        elif error := json.loads(report.read_text()):
            yield f"{name}: rank {rank} of {world}:\n{error}"


def _work(
    module: str, world: int, rank: int, private: Path, directory: Path, names: list[str]
) -> None:
    torch.set_num_threads(1)
    cases = importlib.import_module(module)
    generation = 0
    store = _join(private, generation, world, rank)
    for name in names:
        torch.manual_seed(0)
        error = ""
        try:
            shared = directory / name
            shared.mkdir(exist_ok=True)
            getattr(cases, name)(shared)
        except BaseException:
            error = traceback.format_exc()
        (private / f"{name}-{rank}.json").write_text(json.dumps(error))
        store.set(f"{name}-{rank}", "failed" if error else "passed")
        keys = [f"{name}-{other}" for other in range(world)]
        store.wait(keys, 3 * _PATIENCE)
        if any(store.get(key) == b"failed" for key in keys):
            # The ranks may be at different places of a conversation: they start another one.
            dist.destroy_process_group()
            generation += 1
            store = _join(private, generation, world, rank)
    dist.destroy_process_group()


def _join(private: Path, generation: int, world: int, rank: int) -> dist.Store:
    store = dist.FileStore(str(private / f"store-{generation}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=_PATIENCE)
    return dist.PrefixStore("cases", store)


if __name__ == "__main__":
    _module, _world, _rank, _private, _directory, *_names = sys.argv[1:]
    _work(_module, int(_world), int(_rank), Path(_private), Path(_directory), _names)
