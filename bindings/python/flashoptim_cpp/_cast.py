"""Casting of a model to a 16-bit dtype."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

# They add to their running statistics what is too little for 8 bits of significand.
_NORMS_WITH_STATISTICS: Final = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)


def cast_model(
    model: nn.Module,
    dtype: torch.dtype = torch.bfloat16,
    selective: bool = True,
    full_precision_layers: Sequence[str | nn.Module] | None = None,
    full_precision_recast_layers: Sequence[str | nn.Module] | None = None,
) -> None:
    """Casts a model's floating-point parameters and buffers in place.

    Buffers are cast like parameters, tables of rotary embeddings too, which lose precision in 16
    bits. To keep one in fp32, name its module in `full_precision_recast_layers`, or compute it
    anew after the cast.

    Parameters stay the objects that they are, so an optimizer may already hold them, and tensors
    that share memory or an object (tied weights) go on doing so. Gradients are dropped.

    Args:
        model: the model.
        dtype: bfloat16, float16 or float32.
        selective: keep norms that have running statistics (batch and instance norms) in fp32.
        full_precision_layers: modules kept in fp32 with all they contain; their inputs are cast to
            fp32 and their outputs stay so. Patterns of dotted names, as in a shell (``"*.head"``),
            or the modules themselves. For last layers.
        full_precision_recast_layers: the same, with outputs cast to `dtype`. For layers in between.

    Raises:
        TypeError: `dtype` is not one of the three.
        ValueError: a pattern or module is not found in the model.
    """
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(f"dtype must be bfloat16, float16 or float32, not {dtype}")
    last = _find(model, full_precision_layers or ())
    between = _find(model, full_precision_recast_layers or ())

    full = [*last, *between]
    if selective:
        full += [module for module in model.modules() if isinstance(module, _NORMS_WITH_STATISTICS)]
    kept = {_memory(tensor) for module in full for tensor in _tensors(module)}

    casts: dict[Hashable, Tensor] = {}
    for tensor in _tensors(model):
        memory = _memory(tensor)
        wanted = torch.float32 if memory in kept else dtype
        if tensor.is_floating_point() and tensor.dtype != wanted:
            if memory not in casts:
                casts[memory] = tensor.detach().to(wanted)
            tensor.grad = None
            tensor.data = casts[memory]

    for layer in (*last, *between):
        layer.register_forward_pre_hook(_cast_inputs, with_kwargs=True)
    for layer in between:
        layer.register_forward_hook(partial(_cast_output, dtype))


def _find(model: nn.Module, layers: Sequence[str | nn.Module]) -> list[nn.Module]:
    found: list[nn.Module] = []
    for wanted in layers:
        matches = [
            module
            for name, module in model.named_modules()
            if (fnmatchcase(name, wanted) if isinstance(wanted, str) else module is wanted)
        ]
        if not matches:
            raise ValueError(
                f"no module of the model matches {wanted!r}; names are those of named_modules()"
            )
        found.extend(module for module in matches if module not in found)
    return found


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _memory(tensor: Tensor) -> Hashable:
    """What two tensors have in common that are one in memory, whichever objects they are."""
    if tensor.numel() == 0 or tensor.is_meta:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """All floating-point tensors in a nest of containers, cast."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_only(Tensor, cast, value)


def _cast_inputs(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return _cast(args, torch.float32), _cast(kwargs, torch.float32)


def _cast_output(dtype: torch.dtype, _: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return _cast(output, dtype)
