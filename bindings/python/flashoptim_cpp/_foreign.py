"""State dicts of other packages, recognised and brought to torch's terms (docs/migrating.md)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Protocol

from torch import Tensor

from . import _foreign_bitsandbytes, _foreign_official
from ._options import Group, RuleKind
from ._state import State, naming, parameter_name, weight_of

Groups = Sequence[Group]
States = Mapping[Hashable, State]


class _Format(Protocol):
    """What a module that reads a foreign format offers."""

    def recognises(self, groups: Groups, states: States) -> bool:
        """Whether a state dict is of this format."""

    def read_group(self, saved: Group, kind: RuleKind) -> Group:
        """A parameter group under the names of torch and this package."""

    def read_state(self, saved: State, weight: Tensor, saved_group: Group, kind: RuleKind) -> State:
        """A parameter's state with fp32 moments, and a correction of 16 bits if it has one."""


_FORMATS: Final[tuple[_Format, ...]] = (_foreign_official, _foreign_bitsandbytes)


def translate(
    saved_groups: Groups, saved_states: States, groups: Groups, kind: RuleKind
) -> tuple[Groups, States]:
    """The groups and states of another package's state dict as those of torch's optimizers.

    Those of torch, and of packages that name state as torch does, are returned as they are.

    Args:
        saved_groups, saved_states: of a state dict that is not of this package.
        groups: the optimizer's parameter groups, as many and as long as `saved_groups`.
        kind: the optimizer's rule.

    Raises:
        ValueError, TypeError: the state dict cannot be read; the message names the parameter.
    """
    for saved_group in saved_groups:
        _check_weight_decay(saved_group, kind)
    found = [form for form in _FORMATS if form.recognises(saved_groups, saved_states)]
    if not found:
        return saved_groups, saved_states
    form = found[0]
    states: dict[Hashable, State] = {}
    for index, (group, saved_group) in enumerate(zip(groups, saved_groups, strict=True)):
        pairs = zip(group["params"], saved_group["params"], strict=True)
        for position, (param, saved_index) in enumerate(pairs):
            if saved := saved_states.get(saved_index):
                with naming(parameter_name(groups, index, position)):
                    weight = weight_of(param)
                    states[saved_index] = form.read_state(saved, weight, saved_group, kind)
    return [form.read_group(saved_group, kind) for saved_group in saved_groups], states


def _check_weight_decay(saved_group: Group, kind: RuleKind) -> None:
    """Refuses torch's Adam and AdamW in each other's place, where that changes the training."""
    decoupled = saved_group.get("decoupled_weight_decay", kind.decoupled)
    if decoupled != kind.decoupled and saved_group.get("weight_decay"):
        theirs, remedy = ("decoupled", "FlashAdamW") if decoupled else ("an L2 term", "FlashAdam")
        raise ValueError(
            f"weight_decay={saved_group['weight_decay']} of the state dict is {theirs}, which it "
            f"is not in this optimizer; load it with {remedy}, or set it to 0 in the state dict"
        )
