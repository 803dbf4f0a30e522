"""A progress bar for terminals, a line every tenth of the way for logs."""

from __future__ import annotations

import sys
import time

WIDTH = 28


class Progress:
    """Shows ``done`` of ``total``, a text, and the time left."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self._start = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._tenths = 0

    def update(self, done: int, text: str = "") -> None:
        """Redraw the bar; without a terminal, print a line when another tenth is done."""
        tenths = 10 * done // self.total
        if not self._terminal and tenths == self._tenths:
            return
        self._tenths = tenths
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
