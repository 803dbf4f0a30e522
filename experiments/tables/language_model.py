"""Validation losses of GPT-2, and their gaps to fp32."""

from __future__ import annotations

from typing import Final

from bench.results import Result
from experiments import gaps


def losses(result: Result) -> str:
    """By variant."""
    return gaps.markdown(result, "validation loss, nats per token")


BLOCKS: Final = {"losses": losses}
