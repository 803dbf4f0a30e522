"""``python -m flashoptim_cpp convert``: torch checkpoints to state files, and back."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ._files import OPTIONS, load_checkpoint, read_tensors, save_checkpoint
from ._optimizer import FlashOptimizer
from ._rules import FlashAdam, FlashAdamW, FlashLion, FlashSGD, FlashSGDW

_CLASSES: dict[str, Callable[..., FlashOptimizer]] = {
    "adam": FlashAdam,
    "adamw": FlashAdamW,
    "lion": FlashLion,
    "sgd": FlashSGD,
    "sgdw": FlashSGDW,
}
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class _Weights(nn.Module):
    """Tensors under their names, dots included, in the order given."""

    def __init__(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in parameters.items():
            self._parameters[name] = nn.Parameter(tensor)
        self._buffers.update(buffers)


def convert(arguments: list[str]) -> int:
    """Runs the command; returns its exit code, as docs/command-line.md lists them."""
    parser = argparse.ArgumentParser(
        prog="python -m flashoptim_cpp convert",
        description="Converts a torch checkpoint with the state of torch's, the official "
        "flashoptim's, bitsandbytes's or this package's optimizer to a state file, and back.",
        epilog="example: python -m flashoptim_cpp convert run.pt run.safetensors --optimizer adamw",
    )
    parser.add_argument("source", help="a .pt file, or a .safetensors file or index")
    parser.add_argument("target", help="the other of the two")
    parser.add_argument("--optimizer", choices=sorted(_CLASSES), help="what made a .pt's state")
    parser.add_argument("--model-key", default="model", help="of the weights (%(default)s)")
    parser.add_argument("--optimizer-key", default="optimizer", help="of the state (%(default)s)")
    parser.add_argument("--codec", choices=("root", "softsign", "none"), default="root")
    parser.add_argument("--master-weight-bits", type=int, choices=(16, 24, 32), default=24)
    parser.add_argument(
        "--torch", action="store_true", help="write fp32 weights and torch's state to the .pt"
    )
    options = parser.parse_args(arguments)
    try:
        if options.source.endswith((".safetensors", ".safetensors.zst", ".index.json")):
            _to_torch(options)
        else:
            _from_torch(options)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        print(f"flashoptim: {error}", file=sys.stderr)
        return 1
    return 0


def _from_torch(options: argparse.Namespace) -> None:
    if options.optimizer is None:
        raise ValueError("say which optimizer made the state: --optimizer adamw, for instance")
    weights, saved = _read(options.source, options.model_key, options.optimizer_key)
    count = sum(len(group["params"]) for group in saved["param_groups"])
    parameters = {
        name: tensor
        for name, tensor in weights.items()
        if tensor.is_floating_point() and not name.endswith(_STATISTICS)
    }
    if len(parameters) != count:
        raise ValueError(
            f"{options.source}: the model has {len(parameters)} floating tensors and the optimizer "
            f"{count} parameters, so they cannot be matched; load both in Python and call "
            "flashoptim_cpp.save_checkpoint(path, model, optimizer)"
        )
    names = _names(saved["param_groups"], list(parameters))
    buffers = {name: tensor for name, tensor in weights.items() if name not in parameters}
    model = _Weights(parameters, buffers)
    by_name = dict(model.named_parameters())
    groups = [{"params": [by_name[name] for name in group]} for group in names]
    optimizer = _CLASSES[options.optimizer](
        groups,
        quantize=options.codec != "none",
        codec=options.codec,
        master_weight_bits=options.master_weight_bits,
    )
    optimizer.load_state_dict(saved)
    save_checkpoint(options.target, model, optimizer)


def _read(path: str, model_key: str, optimizer_key: str) -> tuple[dict[str, Tensor], Any]:
    """Weights and optimizer state of a torch checkpoint; ValueError says what is wrong with it."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a file that is no pickle can end in any of Python's errors
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: torch cannot read it as a checkpoint of tensors "
            f"({type(error).__name__}: {reason}); save it with torch.save"
        ) from error
    for key in (model_key, optimizer_key):
        if not isinstance(checkpoint, dict) or key not in checkpoint:
            raise ValueError(f"{path} has no '{key}'; name it with --model-key or --optimizer-key")
    weights, saved = checkpoint[model_key], checkpoint[optimizer_key]
    if not isinstance(weights, dict) or not all(isinstance(t, Tensor) for t in weights.values()):
        raise ValueError(
            f"{path}: '{model_key}' is not a state dict of tensors; name that with --model-key"
        )
    if not isinstance(saved, dict) or not {"state", "param_groups"} <= saved.keys():
        raise ValueError(
            f"{path}: '{optimizer_key}' is not the state dict of an optimizer; name that with "
            "--optimizer-key"
        )
    return weights, saved


def _names(groups: list[dict[str, Any]], names: list[str]) -> list[list[str]]:
    """Names of the parameters of each group: those that it says, or by their numbers."""
    named = []
    for group in groups:
        given = group.get("param_names")
        named.append(list(given) if given else [names[number] for number in group["params"]])
    unknown = {name for group in named for name in group} - set(names)
    if unknown:
        raise ValueError(f"the optimizer names parameters that the model lacks: {sorted(unknown)}")
    return named


def _to_torch(options: argparse.Namespace) -> None:
    metadata, tensors = read_tensors(options.source)
    if OPTIONS not in metadata:
        raise ValueError(f"{options.source} holds no optimizer state; load it with safetensors")
    description = json.loads(metadata[OPTIONS])
    names = [group["parameters"] for group in description["groups"]]
    parameters = {}
    for name in (name for group in names for name in group):
        if name not in tensors:
            raise ValueError(f"{options.source} holds no weight '{name}', only its state")
        order = description["memory_order"].get(name)
        parameters[name] = tensors[name] if order is None else _in_order(tensors[name], order)
    state = {key for key in tensors if key.rpartition(".")[0] in parameters}
    buffers = {n: t for n, t in tensors.items() if n not in parameters and n not in state}
    model = _Weights(parameters, buffers)
    by_name = dict(model.named_parameters())
    decoupled = any(g["weight_decay_kind"] != "coupled" for g in description["groups"])
    rule = description["rule"] + ("w" if decoupled and description["rule"] != "lion" else "")
    optimizer = _CLASSES[rule](
        [
            {
                "params": [by_name[name] for name in group["parameters"]],
                "codec": group["codec"] if group["codec"] != "none" else "root",
                "quantize": group["codec"] != "none",
                "master_weight_bits": group["master_weight_bits"],
                **({"momentum": group["momentum"]} if rule.startswith("sgd") else {}),
                **({"amsgrad": group["amsgrad"]} if rule.startswith("adam") else {}),
            }
            for group in description["groups"]
        ]
    )
    load_checkpoint(options.source, model, optimizer)
    weights = optimizer.get_fp32_model_state_dict(model) if options.torch else model.state_dict()
    state_dict = optimizer.torch_state_dict() if options.torch else optimizer.state_dict()
    torch.save({options.model_key: weights, options.optimizer_key: state_dict}, options.target)


def _in_order(tensor: Tensor, order: list[int]) -> Tensor:
    """The same values with these dimensions from the outermost in memory inwards."""
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)
