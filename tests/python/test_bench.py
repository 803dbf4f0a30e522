"""The benchmarks: tiny runs end to end, how results are judged, and tables in documents.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

# One worker runs each benchmark once.
pytestmark = pytest.mark.xdist_group("bench")

ROOT = Path(__file__).resolve().parents[2]
Module = Callable[[str], ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """Imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT))

    def load(name: str) -> ModuleType:
        return __import__(f"bench.{name}", fromlist=[name])

    return load


def run(*arguments: str, paths: str = "") -> subprocess.CompletedProcess[str]:
    """A program of the benchmarks, with one thread: many wait for each other on a busy machine."""
    path = os.pathsep.join(filter(None, (paths, os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )


def benchmark(
    tmp_path_factory: pytest.TempPathFactory, *arguments: str, paths: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Result and output of a run that must succeed."""
    out = tmp_path_factory.mktemp("bench") / "new" / "result.json"
    done = run(*arguments, "--quick", "--out", str(out), paths=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(out.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content, done.stdout.splitlines()


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    return benchmark(tmp_path_factory, "bench/cpu.py")


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """The benchmark of GPUs on a CPU, with one peer that is there and does not work."""
    peer = tmp_path_factory.mktemp("peers") / "flashoptim.py"
    peer.write_text("def FlashAdamW(*_, **__): raise RuntimeError('needs more\\nof everything')\n")
    arguments = ("-m", "bench.cuda", "--device", "cpu", "--peers", "official")
    return benchmark(tmp_path_factory, *arguments, paths=str(peer.parent))


def check_result(result: dict[str, Any], names: list[str]) -> None:
    assert [case["name"] for case in result["cases"]] == names
    for key in ("machine", "versions", "commit", "command", "date", "settings"):
        assert result[key], key
    for case in result["cases"]:
        assert case["copy"]["gb_per_s"] > 0
        for contender in case["contenders"]:
            if contender["status"] == "ok":
                assert contender["moved_bytes"] > 0
                assert contender["of_copy"] > 0
                for times in contender["ms"].values():
                    assert 0 < times["min"] <= times["q1"] <= times["median"]
                    assert times["median"] <= times["q3"] <= times["max"]
                    assert times["samples"] == 2


def test_the_cpu_benchmark_times_every_contender(cpu: tuple[dict[str, Any], list[str]]) -> None:
    result, _ = cpu
    check_result(result, ["2^26", "gpt2", "small", "variants"])
    contenders = [c for case in result["cases"] for c in case["contenders"]]
    assert {c["status"] for c in contenders} == {"ok"}, contenders
    assert result["machine"]["threads"] == 1
    assert result["machine"]["cpu_target"] in ("scalar", "avx2", "avx512", "avx512_vbmi")


def test_the_cpu_benchmark_ends_with_both_ratios(cpu: tuple[dict[str, Any], list[str]]) -> None:
    pattern = r"adamw vs torch fused fp32: \d+\.\d\dx \(2\^26\) \d+\.\d\dx \(gpt2\)"
    assert re.fullmatch(pattern, cpu[1][-1])


def test_bytes_are_those_of_the_format(cpu: tuple[dict[str, Any], list[str]]) -> None:
    case = cpu[0]["cases"][0]  # one matrix whose rows are multiples of 64
    moved = {c["key"]: c["moved_bytes"] / case["parameters"] for c in case["contenders"]}
    assert moved["adamw"] == pytest.approx(12.25, abs=0.01)  # and step counts
    assert moved["torch-fused-fp32"] == pytest.approx(28, abs=0.01)
    assert moved["torch-fused-bf16"] == pytest.approx(14, abs=0.01)


def test_our_updates_were_compared_with_those_of_torch(
    cpu: tuple[dict[str, Any], list[str]],
) -> None:
    errors = {c["key"]: c["update_error"] for c in cpu[0]["cases"][0]["contenders"]}
    assert errors["torch-fused-fp32"] is None
    assert 0 < errors["adamw"] < 0.1


def test_the_cuda_benchmark_runs_on_a_cpu(cuda: tuple[dict[str, Any], list[str]]) -> None:
    result, lines = cuda
    known = "adamw-2^30 llama gpt2 resnet50 small lion-2^30 sgd-2^30 variants adamw-2^28 shapes"
    check_result(result, known.split())
    # Targets in milliseconds are those of one GPU; the others hold everywhere.
    assert [target["kind"] for target in result["targets"]] == ["of_copy", "first", "ratio"]
    met = sum(target["met"] for target in result["targets"])
    assert lines[-1] == f"targets met: {met} of 3"


def test_a_peer_that_fails_is_recorded(cuda: tuple[dict[str, Any], list[str]]) -> None:
    contenders = {c["key"]: c for c in cuda[0]["cases"][0]["contenders"]}
    assert contenders["official-adamw"]["status"] == "failed"
    assert contenders["official-adamw"]["reason"] == "RuntimeError: needs more"
    assert contenders["bnb-adamw8"]["reason"] == "not asked for"
    assert contenders["adamw"]["status"] == "ok"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    done = run("-m", "bench.cuda")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"bench-cuda: .*GPU.*\n", done.stderr)


@pytest.mark.parametrize("wrong", [("--cases", "gpt3"), ("--peers", "apex"), ("--rounds", "0")])
def test_a_wrong_argument_is_refused(wrong: tuple[str, str]) -> None:
    done = run("-m", "bench.cuda", "--quick", "--device", "cpu", *wrong)
    assert done.returncode == 2
    assert wrong[1] in done.stderr or wrong[0] in done.stderr


def test_shapes_are_those_of_the_models(module: Module) -> None:
    shapes = module("shapes")
    for model, tensors, parameters in (
        (shapes.one_tensor(26), 1, 1 << 26),
        (shapes.gpt2(), 148, 124_439_808),
        (shapes.resnet50(), 161, 25_557_032),
        (shapes.llama(layers=32), 291, 8_030_261_248),
    ):
        assert (len(model), shapes.elements(model)) == (tensors, parameters)
    assert len(shapes.llama()) == 75
    sizes = [shapes.elements((shape,)) for shape in shapes.many_sizes()]
    assert len(sizes) == 320
    assert min(sizes) == 64
    assert 1_990_000 < max(sizes) <= 2_000_000
    assert len(set(shapes.distinct())) == 300


@pytest.mark.parametrize("fault", ["nothing", "not finite", "stale state", "wrong direction"])
def test_a_step_that_does_not_step_is_not_timed(
    module: Module, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    cases, contenders, runner = module("cases"), module("contenders"), module("runner")
    right = contenders.CONTENDERS["adamw"].make

    def make(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = right(params)
        step = optimizer.step

        @torch.no_grad()
        def faulty() -> None:
            if fault == "wrong direction":
                optimizer.param_groups[0]["maximize"] = True
            if fault == "stale state":
                params[0].add_(1e-3)
            elif fault != "nothing":
                step()
            if fault == "not finite":
                params[0][0, 0] = torch.nan

        monkeypatch.setattr(optimizer, "step", faulty)
        return optimizer

    wrong = replace(contenders.CONTENDERS["adamw"], make=make)
    monkeypatch.setitem(contenders.CONTENDERS, "adamw", wrong)
    case = cases.Case("x", "x", ((64, 64),), ("adamw", "torch-fused-fp32"), ("wall",))
    clock = module("measure").CpuClock()
    options = runner.Options(rounds=1, seconds_per_sample=0.001, copy_bytes=4096)
    result = runner.run(case, clock, options, runner.Budget(60, 1))
    ours, theirs = result["contenders"]
    assert ours["status"] == "failed"
    assert "WrongResultError" in ours["reason"]
    assert theirs["status"] == "ok"


def test_what_does_not_fit_is_skipped(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, runner = module("cases"), module("runner")
    monkeypatch.setattr(module("machine"), "available_memory", lambda _: 64 * 64 * 10)
    case = cases.Case("x", "x", ((64, 64),), ("adamw", "torch-fused-fp32"), ("wall",))
    options = runner.Options(rounds=1, seconds_per_sample=0.001, copy_bytes=4096)
    budget = runner.Budget(60, 1)
    result = runner.run(case, module("measure").CpuClock(), options, budget)
    ours, theirs = result["contenders"]
    assert ours["status"] == "ok"
    assert theirs["status"] == "skipped"
    assert "GiB" in theirs["reason"]


def test_targets_are_judged_by_what_was_timed(module: Module) -> None:
    cases, results = module("cases"), module("results")
    targets = (
        cases.Target("adamw", "ms", 3.3, gpu="H200"),
        cases.Target("adamw", "of_copy", 0.94),
        cases.Target("adamw", "first", 2),
        cases.Target("adamw", "ratio", 1, against="torch-fused-fp32"),
    )
    case = cases.Case("x", "x", ((1,),), ("adamw",), ("device",), targets)

    def contender(key: str, milliseconds: float) -> dict[str, Any]:
        return {
            "key": key,
            "status": "ok",
            "ms": {"device": {"median": milliseconds}},
            "of_copy": 0.95,
            "first_step_ms": 9.0,
            "second_step_ms": 4.0,
        }

    timed = [contender("adamw", 3.2), contender("torch-fused-fp32", 9.0)]
    done = {"name": "x", "metric": "device", "contenders": timed}
    result = {"machine": {"gpu": "NVIDIA H200"}, "cases": [done]}
    assert [target["met"] for target in results.judge(result, [case])] == [True, True, False, True]
    elsewhere = {"machine": {"gpu": "NVIDIA A100"}, "cases": []}
    judged = results.judge(elsewhere, [case])
    assert [target["kind"] for target in judged] == ["of_copy", "first", "ratio"]
    assert not any(target["met"] for target in judged)


def test_names_of_processors_become_names_of_files(module: Module) -> None:
    slug = module("machine").slug
    assert slug("NVIDIA H200") == "h200"
    assert slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"
    assert slug("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz") == "intel-xeon-platinum-8481c"
    assert slug("AMD EPYC 9R14 96-Core Processor") == "amd-epyc-9r14"


def test_tables_of_the_documents_come_from_the_results() -> None:
    done = run("-m", "bench.render", "--check")
    assert done.returncode == 0, done.stderr


def test_documents_are_rendered_from_results(
    cpu: tuple[dict[str, Any], list[str]], cuda: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    document = tmp_path / "docs" / "performance.md"
    document.parent.mkdir()
    names = ("cpu", "cpu-details", "cuda", "cuda-targets", "cuda-details")
    blocks = "".join(f"<!-- bench:{name} -->\nold\n<!-- bench:end -->\n" for name in names)
    document.write_text(f"# Title\n{blocks}end\n", encoding="utf-8")
    render = ("-m", "bench.render", "--root", str(tmp_path), "--results", str(tmp_path))

    assert run(*render).returncode == 0
    assert document.read_text(encoding="utf-8").count("No result yet") == len(names)

    for name, (result, _) in (("cpu-a-1t", cpu), ("cuda-b", cuda)):
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    before = document.read_text(encoding="utf-8")
    assert run(*render, "--check").returncode == 1
    assert document.read_text(encoding="utf-8") == before
    assert run(*render).returncode == 0
    assert run(*render, "--check").returncode == 0

    text = document.read_text(encoding="utf-8")
    assert text.startswith("# Title\n")
    assert text.endswith("end\n")
    assert "old" not in text
    median = cpu[0]["cases"][0]["contenders"][0]["ms"]["wall"]["median"]
    assert f"| {median:.3f} |" in text
    assert "Not timed: official FlashAdamW, 24 bits: failed: RuntimeError: needs more" in text


@pytest.mark.parametrize("fault", ["unknown block", "unknown format"])
def test_what_cannot_be_rendered_is_said_in_one_line(tmp_path: Path, fault: str) -> None:
    name = "cpu" if fault == "unknown format" else "gpu"
    (tmp_path / "README.md").write_text(f"<!-- bench:{name} -->\n<!-- bench:end -->\n")
    (tmp_path / "cpu-a.json").write_text('{"format": 0}')
    done = run("-m", "bench.render", "--root", str(tmp_path), "--results", str(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "README.md" in done.stderr
