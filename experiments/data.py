"""Make the texts and pictures that the training experiments use, from Debian packages.

python -m experiments.data                     # all three: about 20 minutes on two cores
python -m experiments.data documentation       # or some of them

They are kept in experiments/archives, outside of version control; experiments record their SHA-256.
Needs apt-get and the packages ``tokenizers`` (texts) and ``pillow`` (glyphs) of PyPI.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.command_line import short
from experiments import archive, data_glyphs, data_text

NAMES = ("code", "documentation", "glyphs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the archives that are asked for; the result is the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument(
        "--packages", type=Path, help="a folder with .deb files, to be downloaded where missing"
    )
    chosen = parser.parse_args(arguments)
    wanted = chosen.names or NAMES
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as temporary:
        packages = chosen.packages or Path(temporary)
        try:
            for name in NAMES:
                if name in wanted:
                    make(name, packages)
        except (OSError, archive.ArchiveError, ImportError) as error:
            print(f"data: {error}", file=sys.stderr)
            return 1
    return 0


def make(name: str, packages: Path) -> None:
    """Makes one archive and says what came of it."""
    arrays, about = (
        data_glyphs.make(packages) if name == "glyphs" else data_text.make(name, packages)
    )
    path = archive.path_of(name)
    digest = archive.write(path, arrays, about)
    shapes = ", ".join(f"{key} {list(array.shape)}" for key, array in arrays.items())
    print(f"{short(path)}: {path.stat().st_size / 2**20:.1f} MiB; {shapes}; sha256 {digest}")


if __name__ == "__main__":
    sys.exit(main())
