"""Accuracies of the ResNet, and their gaps to fp32."""

from __future__ import annotations

from typing import Final

from bench.results import Result
from experiments import gaps


def accuracy(result: Result) -> str:
    """By rule and variant."""
    return gaps.markdown(result, "share of letters read rightly")


BLOCKS: Final = {"accuracy": accuracy}
