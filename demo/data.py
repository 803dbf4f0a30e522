"""Real text that every machine with Python has: the sources of the standard library, as bytes."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

# Tables of numbers rather than text, test suites that Debian packages apart, and other people's
# packages: leaving them out makes the corpus nearly the same on every machine.
EXCLUDED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "encodings", "__pycache__"}
)
VALIDATION_EVERY = 20  # one file in twenty, about 5 % of the text
MINIMUM_BYTES = 1 << 20


class CorpusError(Exception):
    """The machine does not have enough text."""


@dataclass(frozen=True)
class Corpus:
    """Training and validation text, one uint8 per byte; no file is in both."""

    train: Tensor
    validation: Tensor
    files: int

    def batch(self, seed: int, step: int, size: int, context: int) -> tuple[Tensor, Tensor]:
        """Inputs and next-byte targets, int64 ``[size, context]``.

        A pure function of its arguments, so that a resumed run sees what the first one saw.
        """
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        last = len(self.train) - context - 1
        starts = torch.randint(last, (size,), generator=generator)
        return _windows(self.train, starts, context)

    def validation_batch(self, size: int, context: int) -> tuple[Tensor, Tensor]:
        """``size`` windows spread evenly over the validation text: always the same ones."""
        last = len(self.validation) - context - 1
        return _windows(self.validation, torch.arange(size) * last // size, context)


def _windows(text: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    window = text[starts[:, None] + torch.arange(context + 1)[None, :]].long()
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def _sources(root: Path) -> list[Path]:
    """Sorted ``.py`` files under ``root`` outside the excluded folders."""
    relative = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    kept = (path for path in relative if EXCLUDED_FOLDERS.isdisjoint(path.parts))
    return sorted(kept, key=Path.as_posix)


def _as_tensor(texts: list[bytes]) -> Tensor:
    return torch.frombuffer(bytearray(b"\n".join(texts)), dtype=torch.uint8)


def load_corpus() -> Corpus:
    """Read the standard library of the running interpreter.

    Raises:
        CorpusError: fewer than ``MINIMUM_BYTES`` of sources were found.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = _sources(root)
    texts = [(root / path).read_bytes() for path in paths]
    found = sum(map(len, texts))
    if found < MINIMUM_BYTES:
        raise CorpusError(
            f"the Python sources in {root} hold only {found} bytes of text; "
            "install Python's full standard library: apt-get install libpython3-stdlib"
        )
    train = [text for i, text in enumerate(texts) if i % VALIDATION_EVERY]
    validation = texts[::VALIDATION_EVERY]
    return Corpus(_as_tensor(train), _as_tensor(validation), len(paths))
