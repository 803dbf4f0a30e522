"""The C interface on torch tensors, through ctypes: libflashoptim.so as another program sees it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint64
from ctypes import c_void_p as pointer
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
OPTIMIZERS = ("FlashSGD", "FlashSGDW", "FlashAdam", "FlashAdamW", "FlashLion")
CODECS = ("none", "root", "softsign")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Options(ctypes.Structure):
    """flashoptim_options."""

    _fields_ = (
        ("struct_size", c_size_t),
        *((name, c_int32) for name in ("optimizer", "codec", "master_weight_bits", "nonfinite")),
        *((name, c_double) for name in ("lr", "initial_lr", "beta1", "beta2", "eps")),
        *((name, c_double) for name in ("momentum", "dampening", "weight_decay")),
        ("seed", c_uint64),
        *((name, c_uint8) for name in ("quantize", "stochastic_rounding", "nesterov")),
        *((name, c_uint8) for name in ("maximize", "amsgrad", "decouple_lr")),
        ("reserved", c_uint8 * 2),
    )


class TensorDescription(ctypes.Structure):
    """flashoptim_tensor."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("data", pointer),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("dimensions", c_size_t),
        *((name, c_int32) for name in ("dtype", "device_type", "device_index", "reserved")),
    )


@cache
def library() -> ctypes.CDLL:
    """The library of build/python, or the one that FLASHOPTIM_C_LIBRARY names."""
    built = ROOT / "build" / "python" / "src" / "capi" / "libflashoptim.so"
    loaded = ctypes.CDLL(os.environ.get("FLASHOPTIM_C_LIBRARY", str(built)))
    loaded.flashoptim_last_error.restype = c_char_p
    return loaded


def call(name: str, *arguments: Any) -> None:
    """Calls a function; RuntimeError with its message if it fails."""
    if getattr(library(), name)(*arguments) != 0:
        raise RuntimeError(library().flashoptim_last_error().decode())


def options_of(kind: str, given: Mapping[str, Any]) -> Options:
    """Options in the words of the Python package."""
    options = Options()
    call("flashoptim_options_init", byref(options), c_size_t(ctypes.sizeof(options)),
         OPTIMIZERS.index(kind))  # fmt: skip
    for name, value in given.items():
        if name == "betas":
            options.beta1, options.beta2 = value
        else:
            setattr(options, name, CODECS.index(value) if name == "codec" else value)
    return options


class COptimizer:
    """An optimizer of the C interface that steps torch tensors where they lie."""

    def __init__(
        self, kind: str, groups: Sequence[tuple[Mapping[str, Any], Mapping[str, Tensor]]]
    ) -> None:
        self.tensors = {name: tensor for _, tensors in groups for name, tensor in tensors.items()}
        self._handle = pointer()
        builder = pointer()
        call("flashoptim_builder_create", byref(builder))
        try:
            for index, (given, tensors) in enumerate(groups):
                options = options_of(kind, given)
                call("flashoptim_builder_add_group", builder, byref(options), None)
                for name, tensor in tensors.items():
                    described = _describe(name, tensor)
                    call("flashoptim_builder_add_tensor", builder, c_size_t(index),
                         byref(described))  # fmt: skip
            call("flashoptim_optimizer_create", builder, byref(self._handle))
        finally:
            library().flashoptim_builder_destroy(builder)

    def __del__(self) -> None:
        library().flashoptim_optimizer_destroy(self._handle)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Steps with gradients that lie like their tensors."""
        for index, (name, tensor) in enumerate(self.tensors.items()):
            gradient = gradients[name]
            assert gradient.stride() == tensor.stride()
            call("flashoptim_set_gradient", self._handle, c_size_t(index),
                 pointer(gradient.data_ptr()), DTYPES.index(gradient.dtype))  # fmt: skip
        call("flashoptim_step", self._handle, None)

    def set_lr(self, group: int, lr: float) -> None:
        call("flashoptim_set_lr", self._handle, c_size_t(group), c_double(lr))

    def save(self, path: Path) -> None:
        call("flashoptim_save", self._handle, os.fsencode(path))

    def load(self, path: Path) -> None:
        """State, weights and options."""
        call("flashoptim_load", self._handle, os.fsencode(path))
        call("flashoptim_load_options", self._handle, os.fsencode(path))


def _describe(name: str, tensor: Tensor) -> TensorDescription:
    sizes, strides = (
        (c_int64 * tensor.dim())(*values) for values in (tensor.shape, tensor.stride())
    )
    return TensorDescription(
        ctypes.sizeof(TensorDescription), name.encode(), tensor.data_ptr(), sizes, strides,
        tensor.dim(), DTYPES.index(tensor.dtype), 0, 0, 0,
    )  # fmt: skip
