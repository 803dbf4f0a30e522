"""Optimizers for PyTorch that keep 8-bit moments and split master weights, on CPU and CUDA.

``FlashSGD``, ``FlashSGDW``, ``FlashAdam``, ``FlashAdamW`` and ``FlashLion`` take the place of their
namesakes in ``torch.optim``; ``cast_model`` turns a model into 16 bits first. What is stored, and
what a step does to it, is defined to the bit in docs/format.md.
"""

from __future__ import annotations

from typing import NoReturn

from . import _C

__all__ = [
    "FORMAT_VERSION",
    "FlashAdam",
    "FlashAdamW",
    "FlashLion",
    "FlashOptimizer",
    "FlashSGD",
    "FlashSGDW",
    "GradientReleaseHandle",
    "MemoryByKind",
    "MemoryReport",
    "NumericsError",
    "ParameterMemory",
    "__version__",
    "backends",
    "cast_model",
    "compute_ecc_bits",
    "dequantize",
    "enable_gradient_release",
    "load_checkpoint",
    "quantize",
    "reconstruct_fp32_param",
    "save_checkpoint",
]

__version__: str = _C.version()
FORMAT_VERSION: int = _C.FORMAT_VERSION


def backends() -> dict[str, str]:
    """The devices whose tensors can be stepped here, each with what will do it in words.

    Works without PyTorch.
    """
    found = {"cpu": f"{_C.cpu_target()} of {', '.join(_C.cpu_targets())}"}
    if _C.cuda_available():
        found["cuda"] = _C.cuda_status()
    return found


try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise

    def __getattr__(name: str) -> NoReturn:
        if name in __all__:
            raise ImportError(f"flashoptim_cpp.{name} needs PyTorch; install it: pip install torch")
        raise AttributeError(f"module 'flashoptim_cpp' has no attribute {name!r}")
else:
    from ._cast import cast_model
    from ._files import load_checkpoint, save_checkpoint
    from ._gradient_release import GradientReleaseHandle, enable_gradient_release
    from ._master import compute_ecc_bits, reconstruct_fp32_param
    from ._memory import MemoryByKind, MemoryReport, ParameterMemory
    from ._moments import dequantize, quantize
    from ._numerics import NumericsError
    from ._optimizer import FlashOptimizer
    from ._rules import FlashAdam, FlashAdamW, FlashLion, FlashSGD, FlashSGDW
