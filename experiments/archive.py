"""Arrays in one compressed file, with what they were made from."""

from __future__ import annotations

import hashlib
import json
import lzma
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.machine import ROOT

FOLDER: Final = ROOT / "experiments" / "archives"
# Windows of two-byte tokens match at even places only.
_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]
_DICTIONARY: Final = 1 << 27

Array = NDArray[Any]


class ArchiveError(Exception):
    """An archive is missing or is not what it says."""


@dataclass(frozen=True)
class Archive:
    """What a file holds: its arrays, their SHA-256, and words about their making."""

    arrays: dict[str, Array]
    sha256: str
    about: dict[str, Any]


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """Where an archive is kept."""
    return folder / f"{name}.xz"


def write(path: Path, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> str:
    """Writes an archive at once or not at all, and returns the SHA-256 of its arrays.

    The file is a line of JSON and the bytes of the arrays, one after the other, all compressed.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    digest = hashlib.sha256()
    for array in contiguous.values():
        digest.update(_bytes(array))
    header = {
        "about": dict(about),
        "sha256": digest.hexdigest(),
        "arrays": [[name, a.dtype.str, list(a.shape)] for name, a in contiguous.items()],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    filters = [{**_FILTERS[0], "dict_size": _DICTIONARY}]
    with lzma.open(unfinished, "wb", filters=filters) as file:
        file.write(json.dumps(header).encode() + b"\n")
        for array in contiguous.values():
            file.write(_bytes(array))
    unfinished.replace(path)
    return digest.hexdigest()


def read(path: Path) -> Archive:
    """Reads an archive; its arrays are mapped from an unpacked copy in the temporary folder.

    Processes that read it at the same time may all unpack it; the last one's copy stays.

    Raises:
        ArchiveError: there is none, or the arrays are not those that were written.
    """
    if not path.is_file():
        raise ArchiveError(f"{path} is missing; make it with: python -m experiments.data")
    status = path.stat()
    unpacked = Path(tempfile.gettempdir()) / (
        f"flashoptim-{path.stem}-{status.st_size}-{status.st_mtime_ns}.bin"
    )
    if not unpacked.is_file():
        _unpack(path, unpacked)
    with unpacked.open("rb") as file:
        line = file.readline()
    header = json.loads(line)
    arrays: dict[str, Array] = {}
    offset = len(line)
    for name, dtype, shape in header["arrays"]:
        # Copy-on-write: nobody changes it, but tensors want writable memory.
        array = np.memmap(unpacked, np.dtype(dtype), "c", offset, tuple(shape))
        arrays[name] = array
        offset += array.nbytes
    return Archive(arrays, header["sha256"], header["about"])


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _unpack(path: Path, unpacked: Path) -> None:
    digest = hashlib.sha256()
    with (
        lzma.open(path, "rb") as source,
        tempfile.NamedTemporaryFile(dir=unpacked.parent, delete=False) as target,
    ):
        line = source.readline()
        target.write(line)
        while chunk := source.read(1 << 24):
            digest.update(chunk)
            target.write(chunk)
    if digest.hexdigest() != json.loads(line)["sha256"]:
        Path(target.name).unlink()
        raise ArchiveError(
            f"the contents of {path} have another SHA-256 than it says; make it anew"
        )
    Path(target.name).replace(unpacked)
