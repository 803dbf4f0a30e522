"""Trains a GPT-2-size model on two GPUs, DDP and FSDP2 over NCCL, and compares to the last bit.

make test-multi-gpu
python tests/multi_gpu/run.py --device cpu --tiny    # gloo, a tiny model, to see that it works

Writes RESULTS/multi-gpu-GPU.json with every case's figures. Exit status: 0 all passed, 1 not, 2
there are not enough GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in ("demo", "tests/cuda", "tests/multi_gpu"):
    sys.path.insert(0, str(ROOT / folder))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
from cases import CASES  # noqa: E402
from context import Context  # noqa: E402
from model import GPTConfig  # noqa: E402

_PATIENCE = timedelta(seconds=120)
_GPT2 = GPTConfig(vocabulary=50304, context=512, layers=12, heads=12, width=768)
_TINY = GPTConfig(vocabulary=97, context=16, layers=2, heads=2, width=64)


def main() -> int:
    """Runs the cases; the result is the exit status."""
    parser = argparse.ArgumentParser(description="Test training on several GPUs.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few steps")
    parser.add_argument("--world", type=int, default=2, help="number of processes")
    parser.add_argument("--cases", default="", help="names, with commas; all if empty")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/results")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and torch.cuda.device_count() < arguments.world:
        print(
            f"test-multi-gpu: {torch.cuda.device_count()} GPUs, and {arguments.world} are needed",
            file=sys.stderr,
        )
        return 2
    wanted = [name for name in arguments.cases.split(",") if name]
    unknown = set(wanted) - {case.__name__ for case in CASES}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(
            _work,
            (arguments.world, arguments.device, arguments.tiny, wanted, directory),
            nprocs=arguments.world,
        )
        reports = [
            json.loads((Path(directory) / f"report-{rank}.json").read_text())
            for rank in range(arguments.world)
        ]
    return _record(reports, arguments.out)


def _work(rank: int, world: int, kind: str, tiny: bool, wanted: list[str], directory: str) -> None:
    device = torch.device(kind, rank if kind == "cuda" else None)
    # Whoever trains twice gets the same gradients.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    store = dist.FileStore(str(Path(directory) / "store"), world)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world,
        timeout=_PATIENCE,
        device_id=device if kind == "cuda" else None,
    )
    report: dict[str, Any] = {}
    for case in CASES:
        name = case.__name__
        if wanted and name not in wanted:
            continue
        shared = Path(directory) / name
        shared.mkdir(exist_ok=True)
        config, batch = (_TINY, 2) if tiny else (_GPT2, 4)
        context = Context(rank, world, device, 3 if tiny else 30, config, batch, shared)
        begin = time.perf_counter()
        try:
            figures = case(context)
            report[name] = {"passed": True, "seconds": time.perf_counter() - begin, **figures}
        except Exception:
            report[name] = {"passed": False, "error": traceback.format_exc()}
        passed: list[Any] = [None] * world
        dist.all_gather_object(passed, report[name]["passed"])
        if rank == 0:
            print(f"{name}: {'passed' if all(passed) else 'FAILED'}", flush=True)
        if kind == "cuda":
            torch.cuda.empty_cache()
    (Path(directory) / f"report-{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


def _record(reports: list[dict[str, Any]], folder: Path) -> int:
    """Writes and prints what the ranks found."""
    from record import commit, environment

    names = list(reports[0])
    cases = {name: [report[name] for report in reports] for name in names}
    failed = [name for name in names if not all(rank["passed"] for rank in cases[name])]
    for name in failed:
        for rank, outcome in enumerate(cases[name]):
            print(f"{name}, rank {rank}:\n{outcome.get('error', 'passed')}", file=sys.stderr)
    result = {
        "commit": commit(),
        "environment": environment(),
        "ranks": len(reports),
        "passed": len(names) - len(failed),
        "failed": failed,
        "cases": cases,
    }
    slug = result["environment"]["gpu"].lower().replace("nvidia ", "").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"multi-gpu-{slug}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed; written: {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
