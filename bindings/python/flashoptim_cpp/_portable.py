"""State as `state_dict` gives it, in forms that files and collectives can carry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _C
from ._moments import decode_moment
from ._sharding import as_bytes, like, local_of
from ._state import CORRECTION, MOMENTS, State, scale_of


def make_portable(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """A state dict post-hook: corrections of 16 bits as bytes, fp32 moments where they are wanted.

    Neither NCCL nor gloo knows 16-bit integers, so that ``full_state_dict`` and
    ``broadcast_from_rank0`` of PyTorch could not send them. The bytes are the same memory.
    """
    codecs: dict[Tensor, _C.Codec] = optimizer._codecs  # type: ignore[attr-defined]
    for group, saved_group in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for param, index in zip(group["params"], saved_group["params"], strict=True):
            if state := optimizer.state.get(param):
                if not group["compress_state_dict"]:
                    state = decompress(state, codecs[param])
                correction = state.get(CORRECTION)
                if isinstance(correction, Tensor) and correction.dtype == torch.int16:
                    state = {**state, CORRECTION: as_bytes(correction)}
                state_dict["state"][index] = state


def decompress(state: State, codec: _C.Codec) -> State:
    """A parameter's state with fp32 moments; they encode to the same codes again."""
    plain = dict(state)
    for name in MOMENTS:
        if scale_of(name) in state:
            codes, scale = plain[name], local_of(plain.pop(scale_of(name)))
            values = decode_moment(MOMENTS[name].kind, codec, local_of(codes), scale)
            plain[name] = like(codes, values.to(codes.device))
    return plain
