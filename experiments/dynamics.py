"""How far the updates of quantised optimizers are from fp64, by kind of gradient.

    python -m experiments.dynamics               # ours beside torch fp32; on a GPU official's and
                                                 # bitsandbytes' kernels too, where installed
    python -m experiments.dynamics --smoke

Every optimizer steps the same gradients for 2,000 steps: those of ten regimes, and AdamW with two
values of beta2. An fp32 weight that is put back to zero after each step is the update itself,
rounded once: so are moments judged, through nothing but the step. Weights of 24 and 32 bits are
left to move; how far they came is compared with fp64 in the end ("displacement").
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from experiments import common
from experiments.regimes import REGIMES, Gradients, Reference, Score
from experiments.steppers import BETA2S, CONTENDERS, Contender, Stepper, walking_lr

LARGEST_ERROR: Final = 0.2
LARGEST_RATIO: Final = 2.0
RULES: Final = ("adamw", "lion", "sgd")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("dynamics", __doc__)
    parser.add_argument("--steps", type=int, help="default: 2000, with --smoke 40")
    parser.add_argument("--rows", type=int, help="of each tensor; default: 64, with --smoke 4")
    parser.add_argument("--row-length", type=int, help="default: 1024, with --smoke 128")
    parser.add_argument("--rules", default=",".join(RULES), help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    chosen.steps = chosen.steps or (40 if chosen.smoke else 2000)
    chosen.rows = chosen.rows or (4 if chosen.smoke else 64)
    chosen.row_length = chosen.row_length or (128 if chosen.smoke else 1024)
    run = common.Run("dynamics", chosen)
    rows: list[dict[str, Any]] = []
    for rule in chosen.rules.split(","):
        of_rule = RuleRun(run, rule, (chosen.rows, chosen.row_length), chosen.steps)
        of_rule.go()
        rows += of_rule.rows()
        run.save(rows=rows, targets=judge(rows))
    run.finish()
    missed = [target for target in run.result["targets"] if not target["met"]]
    for target in missed:
        run.note(f"missed: {target}")
    print(f"targets met: {len(run.result['targets']) - len(missed)}/{len(run.result['targets'])}")
    return 0


class RuleRun:
    """All contenders of one rule, side by side on the same gradients."""

    def __init__(self, run: common.Run, rule: str, shape: tuple[int, int], steps: int) -> None:
        self._run, self._rule, self._steps = run, rule, steps
        self._beta2s = BETA2S if rule == "adamw" else ()
        self._gradients = Gradients(shape, steps, run.generator(1))
        self._copies = max(1, len(self._beta2s))
        like = self._gradients.fp32.double()
        self._walked = torch.zeros_like(like).repeat(self._copies, 1, 1)  # by exact updates
        self._steppers: dict[str, Stepper] = {}
        self._scores: dict[str, Score] = {}
        present = common.peers(run.device)
        for key, contender in CONTENDERS.items():
            if contender.rule != rule or (contender.peer and contender.package not in present):
                continue
            self._try(key, partial(self._enter, key, contender))

    def go(self) -> None:
        """Takes all steps."""
        reference = Reference(self._gradients.fp32, self._beta2s)
        exact_of = getattr(reference, self._rule)
        for key, stepper in self._steppers.items():
            if not stepper.walks:
                self._scores[key] = Score(len(self._walked), self._steps, self._run.device)
        for step in range(self._steps):
            self._gradients.draw()
            exact: Tensor = exact_of(self._gradients.fp32.double()).flatten(0, 1)
            self._walked += exact
            for key in list(self._steppers):
                self._try(key, partial(self._step, key, exact))
            if step in (0, self._steps // 2):
                self._run.note(f"{self._rule}: step {step + 1} of {self._steps}")

    def rows(self) -> list[dict[str, Any]]:
        """A row per contender, regime and beta2."""
        found = []
        for key, stepper in self._steppers.items():
            measured = self._displacements(stepper) if stepper.walks else self._scores[key].rows()
            for index, row in enumerate(measured):
                copy, regime = divmod(index, len(REGIMES))
                found.append(
                    {
                        "rule": self._rule,
                        "contender": key,
                        "label": stepper.contender.label,
                        "package": stepper.contender.package,
                        "regime": REGIMES[regime].name,
                        "beta2": self._beta2s[copy] if self._beta2s else None,
                        **row,
                    }
                )
            twin = self._steppers.get(stepper.contender.twin or "")
            if twin is not None:
                for row in found[-len(measured) :]:
                    row["moments_of_twin"] = stepper.moments_equal(twin)
        return found

    def _enter(self, key: str, contender: Contender) -> bool:
        generator = self._run.generator(2)  # the same weights for all
        self._steppers[key] = Stepper(contender, self._gradients, self._beta2s, generator)
        return True

    def _step(self, key: str, exact: Tensor) -> bool:
        stepper = self._steppers[key]
        stepper.optimizer.step()
        if not stepper.walks:
            self._scores[key].add(stepper.take_update(), exact)
        return True

    def _displacements(self, stepper: Stepper) -> list[dict[str, Any]]:
        moved = stepper.masters() - stepper.start.double()
        rates = [walking_lr(self._rule, regime) for regime in REGIMES] * self._copies
        rows = []
        for own, exact, rate in zip(moved, self._walked, rates, strict=True):
            expected = -rate * exact
            error = float((own - expected).norm() / expected.norm())
            rows.append({"displacement_error": error if math.isfinite(error) else math.inf})
        return rows

    def _try(self, key: str, call: Callable[[], bool]) -> None:
        if not self._run.attempt(key, CONTENDERS[key].package, call):
            self._steppers.pop(key, None)


def judge(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether our updates are within the bounds, in every regime."""
    judged = []
    for row in rows:
        if row["package"] == "flashoptim_cpp" and "error" in row:
            met = (
                row["error"] <= LARGEST_ERROR
                and row["largest"] <= LARGEST_RATIO * row["largest_fp64"]
            )
            keys = ("rule", "contender", "regime", "beta2", "error", "largest", "largest_fp64")
            judged.append({key: row[key] for key in keys} | {"met": met})
    return judged


if __name__ == "__main__":
    sys.exit(main())
