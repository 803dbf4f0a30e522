"""How many elements of an update never reach the weights that are stored."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.contenders import OURS
from experiments.models import GPT2
from experiments.variants import OFFICIAL, VARIANTS, Variant, master_weights


@torch.no_grad()
def step(variant: Variant, model: GPT2, optimizer: Optimizer) -> dict[str, Any]:
    """Makes a step of AdamW and compares it with the same step in fp64.

    The fp64 step is torch's own, from the moments, master weights and gradients that the optimizer
    has. Compared are the first and the last block, which stand for all.

    Returns:
        elements: how many there are.
        moved: of them, those whose weights the fp64 step changes.
        lost: of these, those whose stored master weight did not change.
        arrived: the share of the fp64 update that is in the change of the stored weights: their
            inner product over the update's own.
    """
    blocks = [model.blocks[0], model.blocks[-1]]
    names = {
        parameter: name
        for name, parameter in model.named_parameters()
        if any(parameter is p for block in blocks for p in block.parameters())
    }
    try:
        part = _part(variant, optimizer, names)
        before = master_weights(variant, model, part)
        wanted = _fp64_step(variant, part, names, before)
    except Exception as error:  # the run is worth more than this
        optimizer.step()
        return {"error": f"{type(error).__name__}: {error}"}
    optimizer.step()
    after = master_weights(variant, model, part)
    counts = {"elements": 0, "moved": 0, "lost": 0}
    product = square = 0.0
    for name, update in wanted.items():
        change = after[name].double() - before[name].double()
        moved = update != 0
        counts["elements"] += update.numel()
        counts["moved"] += int(moved.sum())
        counts["lost"] += int((moved & (change == 0)).sum())
        product += float((change * update).sum())
        square += float(update.square().sum())
    return {**counts, "arrived": product / square if square else None}


def _part(variant: Variant, optimizer: Optimizer, names: dict[nn.Parameter, str]) -> Optimizer:
    """An optimizer of some of the parameters that shares their state."""
    groups = []
    for group in optimizer.param_groups:
        options = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay")}
        chosen = [parameter for parameter in group["params"] if parameter in names]
        groups.append({**options, "params": chosen})
    part = variant.make(groups, **variant.options)
    for parameter in names:
        part.state[parameter] = optimizer.state[parameter]
    return part


def _fp64_step(
    variant: Variant,
    optimizer: Optimizer,
    names: dict[nn.Parameter, str],
    weights: dict[str, Tensor],
) -> dict[str, Tensor]:
    """What torch's AdamW adds to fp64 weights, by name."""
    exact: dict[str, nn.Parameter] = {}
    groups = []
    for group in optimizer.param_groups:
        copies = []
        for parameter in group["params"]:
            copy = nn.Parameter(weights[names[parameter]].double())
            copy.grad = parameter.grad.double()
            exact[names[parameter]] = copy
            copies.append(copy)
        groups.append({"params": copies})
    reference = torch.optim.AdamW(groups)
    reference.load_state_dict(_torch_state(variant, optimizer))
    for group in reference.param_groups:
        group.update(fused=None, foreach=None)
    reference.step()
    return {name: copy.detach() - weights[name].double() for name, copy in exact.items()}


def _torch_state(variant: Variant, optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state for torch's AdamW."""
    if variant.package == OFFICIAL:
        # Ours reads it, and decodes the moments.
        groups = [{"params": group["params"]} for group in optimizer.param_groups]
        decoded = VARIANTS["adamw/ours-24"].make(groups)
        decoded.load_state_dict(optimizer.state_dict())
        optimizer = decoded
    if variant.package in (OURS, OFFICIAL):
        return cast(dict[str, Any], cast(Any, optimizer).torch_state_dict())
    return deepcopy(optimizer.state_dict())  # step counts would be shared
