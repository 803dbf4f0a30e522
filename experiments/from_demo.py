"""What the demo has already. Its modules import each other as top-level ones."""

from __future__ import annotations

import sys

from bench.machine import ROOT

sys.path.append(str(ROOT / "demo"))

from data import load_corpus
from measure import measure_memory
from model import GPTConfig, LayerNorm, Linear, linear, weight_decay_groups
from train import CLIP_NORM, WEIGHT_DECAY, learning_rate_factor

__all__ = [
    "CLIP_NORM",
    "WEIGHT_DECAY",
    "GPTConfig",
    "LayerNorm",
    "Linear",
    "learning_rate_factor",
    "linear",
    "load_corpus",
    "measure_memory",
    "weight_decay_groups",
]
