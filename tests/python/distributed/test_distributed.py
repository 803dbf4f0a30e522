"""Sharded and replicated training on several processes (gloo, CPU)."""

from __future__ import annotations

import pytest
import ranks


@pytest.mark.parametrize(("world", "name"), ranks.parameters("cases_steps"))
def test_steps(world: int, name: str) -> None:
    ranks.check("cases_steps", world, name)
