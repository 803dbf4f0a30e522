"""Training steps of Llama 3.1 8B's shape on one GPU: memory by kind, time, and tokens per second.

    python -m experiments.llama                    # one GPU of 139 GiB, about two minutes
    python -m experiments.llama --smoke            # a tiny model on a CPU

Everybody trains the same model on the same batches and recomputes layers in the backward pass.
torch's weights are fp32 under bf16 autocast and its AdamW is the fused one; ours and the official
package's are bf16 weights of 24 bits. Where torch does not fit with all layers, the comparison is
made again with fewer.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import flashoptim_cpp
import torch
from torch import nn
from torch.optim import Optimizer

from bench import machine, shapes
from bench.contenders import OURS, TORCH
from bench.tensors import state_bytes
from experiments import common
from experiments.llama_model import LLAMA_8B, TINY, Llama, Shape

TORCH_BYTES: Final = 16  # per parameter: weight, gradient and two moments in fp32
OPTIONS: Final[dict[str, Any]] = {"lr": 1e-5, "betas": (0.9, 0.95), "weight_decay": 0.1}
LEAST_SPEED: Final = 1.0  # of torch's, end to end


@dataclass(frozen=True)
class Way:
    """A way to train."""

    label: str
    package: str
    module: str
    name: str
    dtype: torch.dtype = torch.bfloat16
    release: bool = False


WAYS: Final = {
    "ours": Way("ours, 24 bits", OURS, OURS, "FlashAdamW"),
    "ours-release": Way("ours, 24 bits, gradient release", OURS, OURS, "FlashAdamW", release=True),
    "torch": Way("torch fp32, fused", TORCH, "torch.optim", "AdamW", torch.float32),
    "official": Way("official 0.1, 24 bits", "flashoptim", "flashoptim", "FlashAdamW"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("llama", __doc__)
    parser.add_argument("--layers", help="and fewer, if torch does not fit; default: 32,24")
    parser.add_argument("--batch", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--sequence", type=int, default=4096, help="default: %(default)s")
    parser.add_argument("--warm-up", type=int, default=3, help="steps; default: %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="that are timed; default: %(default)s")
    chosen = parser.parse_args(arguments)
    shape = TINY if chosen.smoke else LLAMA_8B
    if chosen.smoke:
        chosen.sequence, chosen.warm_up, chosen.steps = min(chosen.sequence, 32), 2, 2
    chosen.layers = chosen.layers or ("2" if chosen.smoke else "32,24")
    if chosen.warm_up < 2:
        parser.error("--warm-up must be at least 2: memory is measured in the last of them")
    run = common.Run("llama", chosen)
    runs: list[dict[str, Any]] = []
    present = {OURS, TORCH} | common.peers(run.device)
    for layers in map(int, chosen.layers.split(",")):
        for key, way in WAYS.items():
            if way.package in present:
                runs.append(attempt(run, shape.with_layers(layers), key, chosen, runs))
                run.save(runs=runs, targets=judge(runs))
        if any(done["status"] == "ok" and done["way"] == "torch" for done in runs):
            break
    run.finish()
    for done in runs:
        run.note(f"{done['layers']} layers, {done['label']}: {_sentence(done)}")
    return 0


def attempt(
    run: common.Run,
    shape: Shape,
    key: str,
    chosen: argparse.Namespace,
    before: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Trains one way, or says why not."""
    way = WAYS[key]
    count = shapes.elements(
        shapes.llama(
            shape.layers, shape.width, shape.heads, shape.kv_heads, shape.hidden, shape.vocabulary
        )
    )
    head: dict[str, Any] = {
        "way": key,
        "label": way.label,
        "layers": shape.layers,
        "parameters": count,
    }
    if way.package == TORCH and run.on_gpu:
        planned = TORCH_BYTES * count + _activations(before, shape.layers)
        free = machine.available_memory(run.device)
        head["planned_bytes"] = planned
        if planned > free:
            reason = f"needs {planned / 2**30:.0f} GiB, and {free / 2**30:.0f} are free"
            return head | {"status": "skipped", "reason": reason}
    run.note(f"{shape.layers} layers, {way.label}")
    try:
        done = run.attempt(way.label, way.package, partial(train, run, shape, way, chosen))
        if done is None:
            return head | {"status": "failed", "reason": run.result["failures"][-1]["reason"]}
        return head | {"status": "ok"} | done
    except torch.cuda.OutOfMemoryError as error:
        return head | {"status": "failed", "reason": f"out of memory: {str(error)[:200]}"}
    finally:
        gc.collect()
        if run.on_gpu:
            torch.cuda.empty_cache()


def train(run: common.Run, shape: Shape, way: Way, chosen: argparse.Namespace) -> dict[str, Any]:
    """Warms up, then measures; memory is the allocator's word at defined moments."""
    memory = Memory(run.device)
    model = Llama(shape, run.device, way.dtype, run.generator(1))
    memory.mark("weights")
    optimizer: Optimizer = getattr(importlib.import_module(way.module), way.name)(
        model.parameters(), **OPTIONS, **({"fused": True} if way.package == TORCH else {})
    )
    autocast = (
        # Weights are used once in a pass: a cache of their casts would only take memory.
        torch.autocast(run.device.type, dtype=torch.bfloat16, cache_enabled=False)
        if way.dtype == torch.float32
        else nullcontext()
    )
    batches = run.generator(2)
    size = (chosen.batch, chosen.sequence + 1)
    handle = None
    if way.release:
        assert isinstance(optimizer, flashoptim_cpp.FlashOptimizer)
        handle = flashoptim_cpp.enable_gradient_release(model, optimizer)
    losses, iterations = [], []
    for step in range(chosen.warm_up + chosen.steps):
        text = torch.randint(shape.vocabulary, size, generator=batches, device=run.device)
        watched = step == chosen.warm_up - 1  # memory is looked at in a step that is not timed
        marks = Marks(run.device)
        if watched:
            memory.reset("states")
        with autocast:
            loss = model(text[:, :-1], text[:, 1:])
        if watched:
            memory.mark("activations")
        loss.backward()
        losses.append(loss.detach())
        del loss
        if watched:
            memory.mark("gradients")
        marks.add()
        optimizer.step()
        marks.add()
        if watched:
            memory.peak()
        optimizer.zero_grad(set_to_none=True)
        if step >= chosen.warm_up:
            iterations.append(marks)
    times = [marks.milliseconds() for marks in iterations]
    if handle is not None:
        handle.remove()
    values = [float(loss) for loss in losses]
    if not all(map(math.isfinite, values)):
        raise RuntimeError(f"{way.label}: a loss is not finite: {values}")
    median = statistics.median(sum(pair) for pair in times)
    return {
        "losses": values,
        "ms": {
            "iteration": median,
            "iterations": [sum(pair) for pair in times],
            "forward_and_backward": statistics.median(pair[0] for pair in times),
            "optimizer": statistics.median(pair[1] for pair in times),
        },
        "tokens_per_second": 1e3 * chosen.batch * chosen.sequence / median,
        "memory": memory.result(),
        "kept": _kept(model, optimizer),
    }


class Memory:
    """Bytes that the allocator has handed out, at named moments of a training step."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._counts = device, device.type == "cuda"
        self._last = self._allocated()
        self._begin = self._last
        self._found: dict[str, int] = {}
        if self._counts:
            torch.cuda.reset_peak_memory_stats(device)

    def mark(self, kind: str) -> None:
        """What was allocated since the last moment is of this kind."""
        now = self._allocated()
        self._found[kind] = now - self._last
        # Gradients are what is there when activations are gone.
        self._last = now - self._found[kind] if kind == "activations" else now

    def reset(self, kind: str) -> None:
        """The same, and the peak counts from here."""
        self.mark(kind)
        if self._counts:
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> None:
        """Of everything since `reset`."""
        if self._counts:
            self._found["peak"] = torch.cuda.max_memory_allocated(self._device) - self._begin
            self._found["peak_reserved"] = torch.cuda.max_memory_reserved(self._device)

    def result(self) -> dict[str, int] | None:
        """By kind, or None where nothing counts."""
        return self._found if self._counts else None

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device) if self._counts else 0


class Marks:
    """Moments on the device's own clock, which nobody waits for until they are read."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._moments: list[Any] = []
        self.add()

    def add(self) -> None:
        """Now."""
        if self._cuda:
            event: Any = torch.cuda.Event  # without types
            moment = event(enable_timing=True)
            moment.record()
            self._moments.append(moment)
        else:
            self._moments.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        """From each moment to the next."""
        pairs = zip(self._moments, self._moments[1:], strict=False)
        if not self._cuda:
            return [1e3 * (end - begin) for begin, end in pairs]
        torch.cuda.synchronize()
        return [float(begin.elapsed_time(end)) for begin, end in pairs]


def judge(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our speed as a multiple of torch's, on the largest model that both fit."""
    timed = [done for done in runs if done["status"] == "ok"]
    layers = max((done["layers"] for done in timed if done["way"] == "torch"), default=None)
    speed = {done["way"]: done["tokens_per_second"] for done in timed if done["layers"] == layers}
    targets = []
    for key in ("ours", "ours-release"):
        value = speed[key] / speed["torch"] if {key, "torch"} <= speed.keys() else None
        met = value is not None and value >= LEAST_SPEED
        targets.append({"way": key, "layers": layers, "limit": LEAST_SPEED, "value": value})
        targets[-1]["met"] = met
    return targets


def _activations(runs: Sequence[dict[str, Any]], layers: int) -> int:
    """Bytes of what is no weight, state or gradient at the peak, as seen with ours."""
    for done in runs:
        if done["way"] == "ours" and done["layers"] >= layers and done.get("memory"):
            of = done["memory"]
            return int(of["peak"] - of["weights"] - of["states"] - of["gradients"])
    return 0


def _kept(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Bytes by kind as our optimizer reports them; for others, weights and state."""
    if isinstance(optimizer, flashoptim_cpp.FlashOptimizer):
        return vars(optimizer.memory_report().by_kind)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return {"weights": weights, "state": state_bytes(optimizer)}


def _sentence(done: dict[str, Any]) -> str:
    if done["status"] != "ok":
        return str(done["reason"])
    text = f"{done['ms']['iteration']:.0f} ms, {done['tokens_per_second']:,.0f} tokens/s"
    peak = (done["memory"] or {}).get("peak")
    return text if peak is None else f"{text}, peak {peak / 2**30:.1f} GiB"


if __name__ == "__main__":
    sys.exit(main())
