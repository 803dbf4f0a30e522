"""States for the optimizers of torch, and for `lion_pytorch.Lion` (docs/migrating.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from . import _C
from ._options import Group, RuleKind
from ._portable import decompress
from ._state import MOMENTS, STEP, State, naming

# What lion_pytorch.Lion keeps in a group.
_LION_OPTIONS = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
_READ_BY_TORCH = ("maximize", "capturable")


def torch_state_dict(
    groups: Sequence[Group],
    states: Mapping[Tensor, State],
    codecs: Mapping[Tensor, _C.Codec],
    kind: RuleKind,
) -> dict[str, Any]:
    """A state dict that the torch optimizer of the same rule loads and goes on with.

    Args:
        groups: the optimizer's parameter groups.
        states: its states by parameter.
        codecs: how their moments are stored.
        kind: its rule.

    Raises:
        ValueError: torch's optimizer cannot do what a group asks for; the message names the group.
    """
    numbers: dict[Tensor, int] = {}
    saved_groups = []
    for index, group in enumerate(groups):
        with naming(f"parameter group {index}"):
            saved_group = _group(group, kind)
        for param in group["params"]:
            numbers.setdefault(param, len(numbers))
        saved_group["params"] = [numbers[param] for param in group["params"]]
        saved_groups.append(saved_group)
    saved_states = {
        number: _state(states[param], param, codecs[param], kind)
        for param, number in numbers.items()
        if states.get(param)
    }
    return {"state": saved_states, "param_groups": saved_groups}


def _defaults(kind: RuleKind) -> dict[str, Any]:
    """The options that a group of the other optimizer has, with their defaults."""
    if kind.rule == _C.Rule.LION:
        return dict(_LION_OPTIONS)
    if kind.rule == _C.Rule.SGD:
        make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    else:
        make = torch.optim.AdamW if kind.decoupled else torch.optim.Adam
    # Of this version of torch, whichever it is.
    return dict(make([nn.Parameter(torch.empty(0))]).defaults)


def _group(group: Group, kind: RuleKind) -> dict[str, Any]:
    saved = _defaults(kind)
    saved.update(
        {
            key: deepcopy(group[key])
            for key in (*kind.hyperparameters, *_READ_BY_TORCH, "initial_lr", "param_names")
            if key in group and (key in saved or key in ("initial_lr", "param_names"))
        }
    )
    if "capturable" in saved:
        # torch refuses it for parameters on the host, where it has no effect here.
        saved["capturable"] = group["capturable"] and all(p.is_cuda for p in group["params"])
    if kind.rule == _C.Rule.LION and group["maximize"]:
        raise ValueError("maximize=True is not in lion_pytorch.Lion; negate the loss instead")
    if not kind.decoupled or not group["weight_decay"]:
        return saved
    if kind.rule == _C.Rule.SGD:
        raise ValueError(
            f"weight_decay={group['weight_decay']} is decoupled, which torch.optim.SGD does not "
            "do; set it to 0 before exporting"
        )
    if group["decouple_lr"]:
        initial = float(group["initial_lr"])
        saved["weight_decay"] = float(group["weight_decay"]) / initial if initial else 0.0
    return saved


def _state(state: State, param: Tensor, codec: _C.Codec, kind: RuleKind) -> State:
    plain = decompress(state, codec)
    saved: State = {}
    if kind.rule == _C.Rule.ADAM:
        saved[STEP] = plain[STEP].clone()
    if kind.rule == _C.Rule.SGD:
        saved["momentum_buffer"] = None
    for name in MOMENTS:
        if name in plain:
            values = plain[name]
            saved[name] = (torch.view_as_complex(values) if param.is_complex() else values).clone()
    return saved
