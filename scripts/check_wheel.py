"""Checks an installed wheel from outside, in an environment that holds nothing else.

scripts/wheel.sh makes the environment: ``python scripts/check_wheel.py DIST VENV``.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
REPEATS = 15

WITHOUT_TORCH = """
import flashoptim_cpp
print(flashoptim_cpp.__version__, *flashoptim_cpp.backends())
try:
    from flashoptim_cpp import FlashAdamW
except ImportError as error:
    print(error)
"""


def run(*command: str | Path) -> str:
    """What a program prints where neither compilers nor this folder can be found."""
    with tempfile.TemporaryDirectory() as elsewhere:
        result = subprocess.run(
            [str(part) for part in command],
            cwd=elsewhere,
            env={"PATH": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed with {result.returncode}:\n{result.stderr}")
    return result.stdout.strip()


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        sys.exit(f"wheel: {what} is {found!r} and should be {wanted!r}")


def milliseconds(*command: str | Path) -> float:
    """The median of the processor time of a program, which a busy machine hardly changes."""
    times = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(*command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times) * 1e3


def check_contents(dist: Path) -> tuple[Path, Path]:
    """Looks into both archives; returns wheel and source distribution."""
    (wheel,) = dist.glob("*.whl")
    (source,) = dist.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    expect(
        "the number of extension modules", sum("/_C." in n and n.endswith(".so") for n in names), 1
    )
    for name in ("flashoptim_cpp/py.typed", "flashoptim_cpp/_C.pyi"):
        expect(f"whether the wheel holds {name}", name in names, True)
    top = {name.split("/")[0] for name in names}
    stem = f"flashoptim_cpp-{VERSION}"
    expect("the top of the wheel", top, {"flashoptim_cpp", f"{stem}.dist-info", f"{stem}.data"})
    with tarfile.open(source) as archive:
        sources = archive.getnames()
    for name in ("VERSION", "LICENSE", "NOTICE", "CMakeLists.txt", "src/core/formulas-inl.h"):
        expect(f"whether the source distribution holds {name}", f"{stem}/{name}" in sources, True)
    return wheel, source


def main(dist: Path, venv: Path) -> None:
    """Fails with a message; otherwise prints sizes and times."""
    wheel, source = check_contents(dist)
    python, program = venv.absolute() / "bin/python", venv.absolute() / "bin/flashoptim"
    lines = run(python, "-c", WITHOUT_TORCH).splitlines()
    expect("version and backends", lines[0].split()[:2], [VERSION, "cpu"])
    expect(
        "what is said without torch",
        lines[1],
        "flashoptim_cpp.FlashAdamW needs PyTorch; install it: pip install torch",
    )
    expect("the version of the program", run(program, "--version"), VERSION)
    expect("the same through Python", run(python, "-m", "flashoptim_cpp", "--version"), VERSION)
    expect("whether it plans", "FlashAdamW" in run(program, "plan", "--params", "8B"), True)
    bare = milliseconds(python, "-c", "pass")
    took = milliseconds(python, "-c", "import flashoptim_cpp") - bare
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    print(f"{source.name}: {source.stat().st_size / 1e6:.2f} MB")
    print(f"import flashoptim_cpp, without torch: {took:.0f} ms after Python's own {bare:.0f} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
