"""State dicts of other packages, recognised and brought to torch's terms (docs/migrating.md)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Protocol

from torch import Tensor

from . import _foreign_bitsandbytes, _foreign_official
from ._options import Group, RuleKind
from ._state import State, naming


class Format(Protocol):
    """What a module that reads a foreign format offers."""

    def recognises(self, groups: Sequence[Group], states: Mapping[Hashable, State]) -> bool:
        """Whether a state dict is of this format."""

    def read_group(self, saved: Group, kind: RuleKind) -> Group:
        """A parameter group under the names of torch and this package."""

    def read_state(self, saved: State, weight: Tensor, saved_group: Group, kind: RuleKind) -> State:
        """A parameter's state with fp32 moments, and a correction of 16 bits if it has one."""


_FORMATS: Final[tuple[Format, ...]] = (_foreign_official, _foreign_bitsandbytes)


def recognise(
    groups: Sequence[Group], states: Mapping[Hashable, State], kind: RuleKind
) -> Format | None:
    """The format of a state dict that this package has not written.

    Args:
        groups, states: of the state dict.
        kind: the rule of the optimizer that is to load it.

    Returns:
        What reads it; None for torch's, and those that name groups and states as torch does.

    Raises:
        ValueError: its weight decay is not that of the rule.
    """
    for index, group in enumerate(groups):
        with naming(f"parameter group {index}"):
            _check_weight_decay(group, kind)
    return next((form for form in _FORMATS if form.recognises(groups, states)), None)


def _check_weight_decay(group: Group, kind: RuleKind) -> None:
    """Refuses torch's Adam and AdamW in each other's place, where that changes the training."""
    decoupled = group.get("decoupled_weight_decay", kind.decoupled)
    if decoupled != kind.decoupled and group.get("weight_decay"):
        theirs, remedy = ("decoupled", "FlashAdamW") if decoupled else ("an L2 term", "FlashAdam")
        raise ValueError(
            f"weight_decay={group['weight_decay']} of the state dict is {theirs}, which it is not "
            f"in this optimizer; load it with {remedy}, or set it to 0 in the state dict"
        )
