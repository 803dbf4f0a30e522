"""Two texts as tokens: C sources of Linux, and its documentation, from Debian's source package."""

from __future__ import annotations

import hashlib
import importlib
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.archive import Array
from experiments.data_packages import fetch, unpack, version_of

PACKAGE: Final = "linux-source-6.1"
VOCABULARY: Final = 16_384  # the model keeps 16-bit tokens signed: at most 32,768
CODE_BYTES: Final = 272_000_000  # a little more than 100 million tokens
VALIDATION_EVERY: Final = 50  # one file in fifty
SAMPLE_EVERY: Final = 10  # the tokenizer learns from one training file in ten
END_OF_FILE: Final = "<|end|>"

_FILES_AT_ONCE: Final = 500


def make(name: str, packages: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Training and validation tokens of ``code`` or ``documentation``, and words about them.

    Files are chosen, and those for validation held out, by the hashes of their paths. One tokenizer
    serves both texts.
    """
    package = fetch([PACKAGE], packages)[PACKAGE]
    texts, chosen, tokenizer = _material(package)
    files = chosen[name]
    train, validation = (sorted(part) for part in _parts(files))
    arrays = {
        "train": _encode(tokenizer, [texts[p] for p in train]),
        "validation": _encode(tokenizer, [texts[p] for p in validation]),
    }
    about = {
        "source": f"{PACKAGE} {version_of(package)}",
        "files": len(files),
        "bytes": sum(len(texts[p]) for p in files),
        "vocabulary": VOCABULARY,
        "tokenizer_sha256": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
    }
    return arrays, about


@cache
def _material(package: Path) -> tuple[dict[str, bytes], dict[str, list[str]], Any]:
    """All files, those that are chosen for each text, and the tokenizer of both."""
    texts = _texts(package)
    chosen = {
        "code": _first_bytes([p for p in texts if p.endswith(".c")], texts, CODE_BYTES),
        "documentation": _by_hash([p for p in texts if p.endswith(".rst")]),
    }
    learned = [p for files in chosen.values() for p in _parts(files)[0][::SAMPLE_EVERY]]
    return texts, chosen, _tokenizer([texts[p] for p in learned])


def _texts(package: Path) -> dict[str, bytes]:
    """C files, and English pages of the documentation, by path."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(package, Path(folder))
        (path,) = Path(folder).rglob("linux-source-*.tar.xz")
        return dict(_members(path))


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r|xz") as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            page = name.startswith("Documentation/") and "/translations/" not in name
            wanted = name.endswith(".c") or (page and name.endswith(".rst"))
            if member.isfile() and wanted and (file := tar.extractfile(member)):
                yield name, file.read()


def _by_hash(paths: Sequence[str]) -> list[str]:
    return sorted(paths, key=lambda path: hashlib.sha256(path.encode()).digest())


def _first_bytes(paths: Sequence[str], texts: dict[str, bytes], limit: int) -> list[str]:
    """As many of the paths, in the order of their hashes, as hold ``limit`` bytes."""
    chosen, size = [], 0
    for path in _by_hash(paths):
        if size >= limit:
            break
        chosen.append(path)
        size += len(texts[path])
    return chosen


def _parts(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files for training and for validation."""
    validation = set(files[::VALIDATION_EVERY])
    return [path for path in files if path not in validation], sorted(validation)


def _tokenizer(texts: Sequence[bytes]) -> Any:
    """A byte-pair tokenizer that has learned from the texts."""
    tokenizers = importlib.import_module("tokenizers")  # only who makes data needs it
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_FILE],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_decode(text) for text in texts), trainer)
    return tokenizer


def _encode(tokenizer: Any, texts: Sequence[bytes]) -> Array:
    """All texts in a row, each with a token that ends it."""
    end = tokenizer.token_to_id(END_OF_FILE)
    pieces = []
    for first in range(0, len(texts), _FILES_AT_ONCE):
        some = [_decode(text) for text in texts[first : first + _FILES_AT_ONCE]]
        for encoding in tokenizer.encode_batch_fast(some):
            pieces.append(np.array([*encoding.ids, end], dtype="<u2"))
    return np.concatenate(pieces)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")
