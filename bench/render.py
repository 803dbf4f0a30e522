"""Puts tables of the result files into the documents, so that their numbers come from the files.

python -m bench.render            # rewrites docs/performance.md and README.md
python -m bench.render --check    # only says whether they are up to date

A document says where: between `<!-- bench:NAME -->` and `<!-- bench:end -->` stands a block that is
made here. NAME is one of BENCH's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

if not __package__:  # run as a file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import tables
from bench.machine import RESULTS, ROOT
from bench.results import FORMAT, Result


class RenderError(Exception):
    """A document or a result file cannot be used."""


@dataclass(frozen=True)
class Source:
    """Results of one kind: where they are, what is made of them, and which documents show it."""

    prefix: str  # of the marks
    documents: tuple[str, ...]
    results: Path
    # Name of a block to the results it shows and how it shows one.
    blocks: Mapping[str, tuple[str, Callable[[Result], str]]]
    command: str  # that makes a result, with {} for its name


def load(folder: Path, benchmark: str) -> list[Result]:
    """The results of a benchmark, one per machine.

    Raises:
        RenderError: a file is not a result that is understood here.
    """
    found = []
    for path in sorted(folder.glob(f"{benchmark}-*.json")):
        result: Result = json.loads(path.read_text(encoding="utf-8"))
        if result.get("format") != FORMAT:
            raise RenderError(f"{path.name}: unknown format; run the benchmark again")
        found.append(result)
    return found


def _cases(result: Result) -> str:
    return "\n\n".join([caption(result), tables.of_cases(result).markdown()])


def _targets(result: Result) -> str:
    met = sum(target["met"] for target in result["targets"])
    count = f"Targets met: {met} of {len(result['targets'])}."
    return "\n\n".join([caption(result), tables.of_targets(result).markdown(), count])


def _details(result: Result) -> str:
    parts = [caption(result)]
    for case in result["cases"]:
        parts += [f"**{tables.title(case)}**", tables.of_case(case).markdown()]
        parts += [f"Not timed: {line}" for line in tables.left_out(case)]
    return "\n\n".join(parts)


def caption(result: Result) -> str:
    """The machine and the command of a result."""
    return f"{tables.machine_line(result)} `{result['command']}`"


BENCH: Final = Source(
    "bench",
    ("docs/performance.md", "README.md"),
    RESULTS,
    {
        "cpu": ("cpu", _cases),
        "cpu-details": ("cpu", _details),
        "cuda": ("cuda", _cases),
        "cuda-targets": ("cuda", _targets),
        "cuda-details": ("cuda", _details),
    },
    "make bench-{}",
)


def render(text: str, folder: Path, source: Source) -> str:
    """A document with all its blocks made anew from the results in a folder.

    Raises:
        RenderError: a block has no known name, or a result file cannot be used.
    """

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name not in source.blocks:
            known = ", ".join(source.blocks)
            raise RenderError(f"no block '{source.prefix}:{name}'; there are {known}")
        benchmark, render_one = source.blocks[name]
        results = load(folder, benchmark)
        missing = f"No result yet; `{source.command.format(benchmark)}` makes one."
        try:
            content = "\n\n".join(map(render_one, results)) or missing
        except KeyError as error:
            reason = f"a result has no {error}; run it again"
            raise RenderError(f"{source.prefix}:{name}: {reason}") from None
        return mark(name) + f"\n\n{content}\n\n" + mark("end")

    def mark(name: str) -> str:
        return f"<!-- {source.prefix}:{name} -->"

    begin = rf"<!-- {source.prefix}:(?!end -->)([a-z-]+) -->"
    return re.sub(rf"{begin}\n(.*?){re.escape(mark('end'))}", block, text, flags=re.S)


def main(arguments: Sequence[str] | None = None, source: Source = BENCH) -> int:
    """Rewrites or checks the documents; the result is the exit status."""
    parser = argparse.ArgumentParser(description="Put result tables into the documents.")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of the documents")
    parser.add_argument(
        "--results", type=Path, default=source.results, help="folder of the results"
    )
    chosen = parser.parse_args(arguments)
    outdated = []
    for name in source.documents:
        path = chosen.root / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        try:
            fresh = render(text, chosen.results, source)
        except RenderError as error:
            print(f"render: {name}: {error}", file=sys.stderr)
            return 2
        if fresh != text:
            outdated.append(name)
            if not chosen.check:
                path.write_text(fresh, encoding="utf-8")
    if outdated:
        said = f"out of date; run python -m {source.prefix}.render" if chosen.check else "rewritten"
        print(f"render: {', '.join(outdated)}: {said}", file=sys.stderr if chosen.check else None)
    return 1 if outdated and chosen.check else 0


if __name__ == "__main__":
    sys.exit(main())
