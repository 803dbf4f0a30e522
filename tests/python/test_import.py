"""What importing the package says, with and without PyTorch."""

from __future__ import annotations

import subprocess
import sys

import flashoptim_cpp as flash
from flashoptim_cpp import _C


def run_python(code: str) -> str:
    """Runs code in a process in which torch cannot be imported."""
    hidden = "import sys\nsys.modules['torch'] = None\n"
    command = [sys.executable, "-c", hidden + code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_without_torch_the_package_says_what_is_missing() -> None:
    out = run_python(
        "import flashoptim_cpp\n"
        "print(flashoptim_cpp.__version__, 'cpu' in flashoptim_cpp.backends())\n"
        "for attempt in ('from flashoptim_cpp import FlashAdamW', 'flashoptim_cpp.cast_model'):\n"
        "    try:\n"
        "        exec(attempt)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    flashoptim_cpp.FlashNothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    assert out.splitlines() == [
        f"{flash.__version__} True",
        "flashoptim_cpp.FlashAdamW needs PyTorch; install it: pip install torch",
        "flashoptim_cpp.cast_model needs PyTorch; install it: pip install torch",
        "module 'flashoptim_cpp' has no attribute 'FlashNothing'",
    ]


def test_an_error_inside_torch_is_shown_as_it_is() -> None:
    code = (
        "import importlib.abc, sys\n"
        "del sys.modules['torch']\n"
        "class Broken(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError('no numpy here', name='numpy')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "try:\n"
        "    import flashoptim_cpp\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert run_python(code) == "no numpy here\n"


def test_every_public_name_exists_and_is_documented() -> None:
    for name in flash.__all__:
        value = getattr(flash, name)
        if callable(value):
            assert value.__doc__, name


def test_backends_name_the_cpu_target_and_cuda_only_where_it_runs() -> None:
    backends = flash.backends()
    assert backends["cpu"].startswith(_C.cpu_target())
    assert ("cuda" in backends) == _C.cuda_available()
    assert _C.cuda_status()
