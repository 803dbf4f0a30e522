"""Weights and optimizer state in safetensors files (docs/format.md, section 11)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from . import _C
from ._checkpoint import FORMAT
from ._optimizer import FlashOptimizer
from ._options import CORRECTION_BITS, Group, RuleKind, asked_codec, hyperparameters
from ._sharding import is_dtensor
from ._state import CORRECTION, MOMENTS, STEP, STREAM_KEY, State, naming, scale_of, weight_of

OPTIONS: Final = "flashoptim_options"
DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}

Path = str | os.PathLike[str]


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: FlashOptimizer,
    *,
    shard_bytes: int = 0,
    zstd_level: int = 3,
) -> None:
    """Writes a model's weights and its optimizer's state to one file, or to shards of it.

    A process killed at any moment leaves the file that was there before, or the new one.

    Args:
        path: ``x.safetensors``, ``x.safetensors.zst`` or ``x.safetensors.index.json``.
        model: its parameters and buffers are saved by name.
        optimizer: of parameters of the model.
        shard_bytes: the size of a shard, for an index.
        zstd_level: for ``.zst``.

    Raises:
        ValueError: a parameter of the optimizer is not one of the model, or the file cannot be
            written; the message names it.
    """
    names = {param: name for name, param in model.named_parameters()}
    tensors = _tensors_of(model)
    optimizer._conform()
    groups = []
    orders: dict[str, list[int]] = {}
    for group in optimizer.param_groups:
        with_state = []
        for param in group["params"]:
            if param not in names:
                raise ValueError(
                    f"the optimizer has a parameter of the shape {list(param.shape)} that is not "
                    "in the model; save the model that the optimizer was made for"
                )
            if state := optimizer.state.get(param):
                name = names[param]
                with_state.append(name)
                tensors.update({f"{name}.{key}": value for key, value in state.items()})
                order = _memory_order(weight_of(param))
                if order != sorted(order):
                    orders[name] = order
        groups.append(_options(group, optimizer._kind, with_state))
    rule = optimizer._kind.rule.name.lower()
    description = {"rule": rule, "groups": groups, "memory_order": orders}
    _write(os.fspath(path), tensors, description, shard_bytes, zstd_level)


def load_checkpoint(path: Path, model: nn.Module, optimizer: FlashOptimizer) -> None:
    """Reads what `save_checkpoint` wrote into a model and its optimizer.

    Groups are matched by their place, parameters by their name. Everything is checked before
    anything is changed.

    Args:
        path: the file or its index.
        model: of the same names, shapes and dtypes.
        optimizer: of the same class and groups.

    Raises:
        ValueError: the file is damaged or does not fit; the message names the tensor.
    """
    weights = _tensors_of(model)
    metadata, tensors = read_tensors(path)
    if OPTIONS not in metadata:
        raise ValueError(f"{os.fspath(path)} holds no optimizer state; load it with safetensors")
    description = json.loads(metadata[OPTIONS])
    for name, weight in weights.items():
        found = tensors.get(name)
        if found is None or found.shape != weight.shape or found.dtype != weight.dtype:
            what = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise ValueError(
                f"{os.fspath(path)}: tensor '{name}': the model has {weight.dtype} "
                f"{list(weight.shape)} and the file {what}; load it into the model that was saved"
            )
    state_dict = _state_dict(description, tensors, model, optimizer)
    optimizer.load_state_dict(state_dict)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file; everything is checked. ValueError names what is wrong."""
    metadata, read = _C.read_checkpoint(os.fspath(path))
    tensors = {}
    for name, (dtype, shape, data) in read.items():
        if dtype not in DTYPES:
            raise ValueError(f"tensor '{name}' has the dtype {dtype}, which is not read here")
        empty = torch.empty(shape, dtype=DTYPES[dtype])
        tensors[name] = (
            torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape) if data else empty
        )
    return metadata, tensors


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, as `weight_of` has them, and buffers, by name."""
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        with naming(f"'{name}'"):
            if is_dtensor(tensor):
                raise ValueError(
                    "it is a DTensor, of which this process holds a part; use "
                    "torch.distributed.checkpoint, or gather model and optimizer with "
                    "full_state_dict=True into an unsharded model (docs/checkpoints.md)"
                )
            is_parameter = isinstance(tensor, nn.Parameter)
            found[name] = weight_of(tensor) if is_parameter else tensor.detach()
    return found


def _memory_order(weight: Tensor) -> list[int]:
    """The dimensions of a dense tensor from the outermost in memory inwards."""
    if weight.is_contiguous():
        return list(range(weight.dim()))
    # As the geometry of the format: a dimension of one element is inside, but dimension 0 outside.
    sizes, strides = weight.shape, weight.stride()
    return sorted(
        range(weight.dim()),
        key=lambda d: -(strides[d] if sizes[d] != 1 else sys.maxsize if d == 0 else -1),
    )


def _options(group: Group, kind: RuleKind, parameters: list[str]) -> dict[str, Any]:
    values = hyperparameters(group, kind)
    return {
        "lr": float(group["lr"]),
        "initial_lr": float(group.get("initial_lr", group["lr"])),
        "betas": [values.beta1, values.beta2],
        "eps": values.eps,
        "momentum": values.momentum,
        "dampening": values.dampening,
        "weight_decay": values.weight_decay,
        "weight_decay_kind": values.weight_decay_kind.name.lower(),
        "nesterov": values.nesterov,
        "maximize": values.maximize,
        "stochastic_rounding": values.stochastic_rounding,
        "nonfinite": values.nonfinite.name.lower(),
        "seed": values.seed,
        "codec": asked_codec(group).name.lower(),
        "master_weight_bits": 16 + CORRECTION_BITS[group["master_weight_bits"]],
        "amsgrad": bool(group.get("amsgrad", False)),
        "parameters": parameters,
    }


def _write(
    path: str,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
    shard_bytes: int,
    zstd_level: int,
) -> None:
    # Kept until the file is written: the native side gets addresses.
    plain = {name: tensor.cpu().contiguous().resolve_neg() for name, tensor in tensors.items()}
    for name, tensor in plain.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f"tensor '{name}' is {tensor.dtype}, which files do not hold here")
    _C.write_checkpoint(
        path,
        [(n, _NAMES[t.dtype], list(t.shape), t.data_ptr()) for n, t in plain.items()],
        {OPTIONS: json.dumps(description)},
        shard_bytes,
        zstd_level,
    )


def _state_dict(
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    optimizer: FlashOptimizer,
) -> dict[str, Any]:
    """A state dict of an optimizer's own, with the state and options of a file."""
    kind = optimizer._kind
    if description["rule"] != kind.rule.name.lower():
        raise ValueError(
            f"the file holds the state of '{description['rule']}' and the optimizer is a "
            f"{type(optimizer).__name__}; make the optimizer that was saved"
        )
    saved = optimizer.state_dict()
    if len(saved["param_groups"]) != len(description["groups"]):
        raise ValueError(
            f"the file has {len(description['groups'])} parameter groups and the optimizer "
            f"{len(saved['param_groups'])}; make the optimizer with the groups that it had"
        )
    names = {param: name for name, param in model.named_parameters()}
    states: dict[int, State] = {}
    groups = []
    for index, (group, own, options) in enumerate(
        zip(optimizer.param_groups, saved["param_groups"], description["groups"], strict=True)
    ):
        numbers = {
            names.get(param): number
            for param, number in zip(group["params"], own["params"], strict=True)
        }
        for name in options["parameters"]:
            if name not in numbers:
                raise ValueError(
                    f"the file has parameter '{name}' in group {index}, and the optimizer has it "
                    "elsewhere; make the optimizer with the groups that it had"
                )
            states[numbers[name]] = {
                key: tensors[f"{name}.{key}"] for key in _STATE if f"{name}.{key}" in tensors
            }
        groups.append({**own, **_group(options, own, index, kind)})
    return {"state": states, "param_groups": groups}


def _group(
    options: Mapping[str, Any], own: Mapping[str, Any], index: int, kind: RuleKind
) -> dict[str, Any]:
    """A group's options in the words of the optimizer."""
    decay = options["weight_decay_kind"]
    if (decay != "coupled") != kind.decoupled:
        raise ValueError(
            f"parameter group {index}: the file has {decay} weight decay; load it into the "
            "optimizer class that was saved"
        )
    group = {name: value for name, value in options.items() if name in own}
    group["betas"] = tuple(options["betas"])
    group["initial_lr"] = options["initial_lr"]
    group["decouple_lr"] = decay == "fully_decoupled"
    group["quantize"] = options["codec"] != "none"
    return {FORMAT: _C.FORMAT_VERSION} | {
        name: value for name, value in group.items() if name in own or name == "initial_lr"
    }


_STATE: Final = (STEP, STREAM_KEY, CORRECTION, *MOMENTS, *map(scale_of, MOMENTS))
