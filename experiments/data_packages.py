"""Debian packages as a source of files."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from experiments.archive import ArchiveError


def fetch(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """The ``.deb`` files of packages by name, downloaded into ``folder`` unless they are there.

    Raises:
        ArchiveError: ``apt-get`` could not download one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not _found(name, folder)]
    if missing:
        done = subprocess.run(
            ["apt-get", "download", "-q", *missing],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ArchiveError(f"apt-get download failed: {done.stderr.strip()}")
    return {name: _found(name, folder)[-1] for name in names}


def unpack(package: Path, folder: Path) -> None:
    """Extracts the files of a package into ``folder``."""
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)


def version_of(package: Path) -> str:
    """Its version, from its file name."""
    return package.name.split("_")[1].replace("%3a", ":")


def _found(name: str, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{name}_*.deb"))
