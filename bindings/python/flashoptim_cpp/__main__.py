"""``python -m flashoptim_cpp``: what the program `flashoptim` does, and torch checkpoints."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_PICKLES = (".pt", ".pth", ".bin", ".ckpt")


def _program() -> str:
    """The program that was installed with this package."""
    beside = Path(sysconfig.get_path("scripts")) / "flashoptim"
    found = str(beside) if beside.exists() else shutil.which("flashoptim")
    if found is None:
        sys.exit("the program flashoptim is not installed; pip install flashoptim-cpp installs it")
    return found


def main(arguments: list[str]) -> int:
    """Converts torch checkpoints here; hands everything else to the program."""
    is_convert = arguments[:1] == ["convert"]
    if is_convert and any(a.endswith(_PICKLES) or a in ("-h", "--help") for a in arguments):
        try:
            from ._convert import convert
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            print("flashoptim: torch checkpoints need PyTorch: pip install torch", file=sys.stderr)
            return 3
        return convert(arguments[1:])
    return subprocess.run([_program(), *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
