"""Memory and speed of training steps."""

from __future__ import annotations

from typing import Any, Final

from bench.render import caption
from bench.results import Result
from bench.tables import Table

GIB: Final = 1 << 30


def memory(result: Result) -> str:
    """GiB by kind, as the allocator counts them."""
    header = ("GiB", "weights", "states", "gradients", "activations and the rest", "peak")
    lines = tuple((_name(run), *_memory(run)) for run in result["runs"])
    return f"{caption(result)}\n\n{Table(header, lines).markdown()}"


def speed(result: Result) -> str:
    """Milliseconds per step and tokens per second."""
    header = ("", "ms per step", "of it the optimizer", "tokens per second")
    lines = []
    for run in result["runs"]:
        if run["status"] != "ok":
            lines.append((_name(run), *["–"] * 3))
            continue
        ms = run["ms"]
        step = f"{ms['optimizer']:.1f} ({100 * ms['optimizer'] / ms['iteration']:.1f} %)"
        share = "in the backward pass" if run["way"] == "ours-release" else step
        lines.append((_name(run), f"{ms['iteration']:.0f}", share, f"{_tokens(run):,.0f}"))
    table = Table(header, tuple(lines)).markdown()
    return f"{caption(result)}\n\n{table}\n\n{_targets(result)}"


def _targets(result: Result) -> str:
    lines = tuple(
        (
            f"{target['way']}, {target['layers']} layers",
            f"at least {target['limit']:.2f}x of torch's speed",
            "not run" if target["value"] is None else f"{target['value']:.2f}x",
            "yes" if target["met"] else "no",
        )
        for target in result["targets"]
    )
    return Table(("", "target", "reached", "met"), lines).markdown()


def _tokens(run: dict[str, Any]) -> float:
    return float(run["tokens_per_second"])


def _name(run: dict[str, Any]) -> str:
    return f"{run['label']}, {run['layers']} layers"


def _memory(run: dict[str, Any]) -> list[str]:
    if run["status"] != "ok":
        planned = run.get("planned_bytes")
        said = "" if planned is None else f", planned {planned / GIB:.0f}"
        return [run["status"] + said, *["–"] * 4]
    of = run["memory"]
    if of is None:
        return ["not counted", *["–"] * 4]
    rest = of["peak"] - of["weights"] - of["states"] - of["gradients"]
    return [f"{x / GIB:.1f}" for x in (of["weights"], of["states"], of["gradients"], rest)] + [
        f"**{of['peak'] / GIB:.1f}**"
    ]


BLOCKS: Final = {"memory": memory, "speed": speed}
