"""Keys that tell the random streams of parameters apart (docs/format.md, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ._options import Group
from ._state import STREAM_KEY, State, host_number


class StreamKeys:
    """A key for every parameter: it keeps it when groups are added, saved and loaded."""

    def __init__(self) -> None:
        self.of: dict[Tensor, int] = {}
        self._next = 0

    def assign(self, groups: Sequence[Group], states: Mapping[Tensor, State]) -> None:
        """Gives every parameter a key of its own: its state's, else the one it was added with.

        A key that another parameter's state has is replaced by a new one, in the state too.
        """
        params = [param for group in groups for param in group["params"]]
        keys: dict[Tensor, int] = {}
        used: set[int] = set()
        for param in params:
            state = states.get(param)
            if state and STREAM_KEY in state and (key := int(state[STREAM_KEY])) not in used:
                keys[param] = key
                used.add(key)
        self._next = max(self._next, *(key + 1 for key in used), 0)
        for param in params:
            if param in keys:
                continue
            key = self.of.get(param, self._next)
            if key in used:
                key = self._next
            self._next = max(self._next, key + 1)
            keys[param] = key
            used.add(key)
            if state := states.get(param):
                state[STREAM_KEY] = host_number(STREAM_KEY, key)
        self.of = keys
