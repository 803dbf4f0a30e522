"""Texts as windows of tokens on the device that trains."""

from __future__ import annotations

import pydoc_data.topics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments import archive
from experiments.from_demo import load_corpus


@dataclass(frozen=True)
class Text:
    """Training and validation tokens, int16, and where they come from."""

    train: Tensor
    validation: Tensor
    about: dict[str, Any]

    def order(self, seed: int, context: int) -> Tensor:
        """The places at which windows that do not overlap begin, shuffled."""
        count = (len(self.train) - 1) // context
        generator = torch.Generator().manual_seed(seed)
        return context * torch.randperm(count, generator=generator).to(self.train.device)

    def validation_places(self, windows: int, context: int) -> Tensor:
        """As many places, spread evenly over the validation text: always the same ones."""
        last = len(self.validation) - context - 1
        places = torch.arange(windows, device=self.validation.device)
        return places * last // max(1, windows - 1)


def windows(tokens: Tensor, places: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and next-token targets, int64 ``[places, context]``."""
    at = places[:, None] + torch.arange(context + 1, device=places.device)[None, :]
    window = tokens[at].long()
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def load(name: str, device: torch.device, *, smoke: bool = False) -> Text:
    """The text ``code`` or ``documentation`` on a device.

    With ``smoke``: bytes of Python's standard library, or of the help texts in it.

    Raises:
        ArchiveError: the archive is missing or damaged.
    """
    if smoke:
        return _small(name, device)
    found = archive.read(archive.path_of(name))
    # The vocabulary is small enough for the sign to be free, and CUDA indexes signed tensors.
    train, validation = (
        torch.from_numpy(found.arrays[part].view(np.int16)).to(device)
        for part in ("train", "validation")
    )
    return Text(train, validation, {**found.about, "sha256": found.sha256})


def _small(name: str, device: torch.device) -> Text:
    if name == "code":
        corpus = load_corpus()
        train, validation = corpus.train.to(torch.int16), corpus.validation.to(torch.int16)
    else:
        topics = "\n".join(pydoc_data.topics.topics.values()).encode()
        tokens = torch.frombuffer(bytearray(topics), dtype=torch.uint8).to(torch.int16)
        train, validation = tokens[len(tokens) // 10 :], tokens[: len(tokens) // 10]
    return Text(train.to(device), validation.to(device), {"source": "Python's standard library"})
