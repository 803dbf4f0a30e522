"""What PyTorch's distributed checkpoints do to an optimizer and its state."""

from __future__ import annotations

import sys
from typing import Final

import torch
from torch import Tensor

from . import _C
from ._options import CORRECTION_BITS, Group, RuleKind
from ._state import CORRECTION, CORRECTION_DTYPES, Layout, State, codec_of, scale_of

FORMAT: Final = "flashoptim_format"

# Wrappers and hooks of torch's between a step and who called it.
_FRAMES_ABOVE_STEP: Final = 16
_FORM: Final = {"quantize", "codec", "master_weight_bits"}


def called_to_make_state() -> bool:
    """Whether a step is not meant as one: PyTorch's distributed checkpoints make state with it.

    ``get_optimizer_state_dict`` and ``set_optimizer_state_dict`` step an optimizer without state,
    with zero gradients and lr 0. Counted as a step it would make bias corrections start at the
    second one.
    """
    frame = sys._getframe(1)
    for _ in range(_FRAMES_ABOVE_STEP):
        if frame is None:
            return False
        if frame.f_code.co_name == "_init_optim_state":
            return frame.f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict"
        frame = frame.f_back  # type: ignore[assignment]
    return False


def check_form(
    saved: State, weight: Tensor, layout: Layout, saved_group: Group, kind: RuleKind
) -> None:
    """Checks that a state is kept as the group that came with it says.

    A distributed checkpoint is copied into the tensors of the optimizer that reads it, whatever
    their dtype. Where that optimizer keeps its state in another form, the numbers mean nothing.

    Args:
        saved: a parameter's entry in a state dict.
        weight: `weight_of` the parameter.
        layout: how its state is wanted.
        saved_group: its group in the state dict.
        kind: the optimizer's rule.

    Raises:
        ValueError: a correction has another width, or codes have no scales.
    """
    if FORMAT not in saved_group or not saved_group.keys() >= _FORM:
        return
    remedy = (
        "make the optimizer with the quantize, codec and master_weight_bits that it was saved "
        "with, and change these after loading"
    )
    master_weight_bits = saved_group["master_weight_bits"]
    wanted = CORRECTION_DTYPES.get(CORRECTION_BITS.get(master_weight_bits, 0))
    correction = saved.get(CORRECTION)
    found = correction.dtype if isinstance(correction, Tensor) else None
    if found == torch.uint8:  # its bytes
        found = torch.int16
    if found != wanted and found in CORRECTION_DTYPES.values():
        raise ValueError(
            f"'{CORRECTION}' in its saved state is {found}, and its group says "
            f"master_weight_bits={master_weight_bits}; {remedy}"
        )
    if not saved_group.get("compress_state_dict"):
        return
    if codec_of(weight, layout.sharding, saved_group) == _C.Codec.NONE:
        return
    for name in kind.all_moments:
        values = saved.get(name)
        floats = isinstance(values, Tensor) and values.is_floating_point()
        if floats and scale_of(name) not in saved:
            raise ValueError(
                f"its group says quantize=True, and its saved state has '{name}' without "
                f"'{scale_of(name)}'; {remedy}"
            )
