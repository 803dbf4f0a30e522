"""A progress bar for terminals, a few lines for logs."""

from __future__ import annotations

import sys
import time

WIDTH = 28


class Progress:
    """Shows ``done`` of ``total``, a text, and the time left.

    Where standard output is no terminal, it prints ``lines`` lines in all.
    """

    def __init__(self, label: str, total: int, lines: int = 10) -> None:
        self.label = label
        self.total = total
        self.lines = lines
        self._start = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._printed = 0

    def update(self, done: int, text: str = "") -> None:
        """Redraw the bar, or print a line if the next one is due."""
        due = self.lines * done // self.total
        if not self._terminal and due == self._printed:
            return
        self._printed = due
        elapsed = time.monotonic() - self._start
        left = elapsed / done * (self.total - done)
        clock = f"{_clock(left)} left" if done < self.total else f"{_clock(elapsed)} total"
        line = f"{self.label} {done:>4}/{self.total}  {text}  {clock}"
        if self._terminal:
            filled = WIDTH * done // self.total
            line = f"\r{'█' * filled}{'░' * (WIDTH - filled)} {line}\x1b[K"
        end = "" if self._terminal and done < self.total else "\n"
        print(line, end=end, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
