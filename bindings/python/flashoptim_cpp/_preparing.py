"""The lock that is held where state is made, so that no thread frees what another writes."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Final


class _Preparing:
    """A lock that a forked child gets anew: it may find the old one held by a thread it lacks."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()


PREPARING: Final = _Preparing()
