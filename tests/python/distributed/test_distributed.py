"""Sharded and replicated training on several processes (gloo, CPU)."""

from __future__ import annotations

import pytest
import ranks


@pytest.mark.parametrize("world", ranks.worlds_of("cases_steps"))
def test_steps(world: int) -> None:
    ranks.check("cases_steps", world)
