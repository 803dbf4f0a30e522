"""Sharded and replicated training on several processes (gloo, CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks


@pytest.mark.parametrize("world", ranks.worlds_of("cases_steps"))
def test_steps(world: int) -> None:
    ranks.check("cases_steps", world)


@pytest.mark.parametrize("module", ["cases_release_ddp", "cases_release_fsdp2"])
def test_gradient_release(module: str) -> None:
    ranks.check(module, 2)


@pytest.mark.parametrize("world", ranks.worlds_of("cases_checkpoint"))
def test_checkpoints(world: int) -> None:
    ranks.check("cases_checkpoint", world)


@pytest.mark.parametrize("world", ranks.worlds_of("cases_master"))
def test_master_weights(world: int) -> None:
    ranks.check("cases_master", world)


def test_checkpoints_on_another_number_of_ranks(tmp_path: Path) -> None:
    for world, names in (
        (2, ["save_for_others"]),
        (3, ["save_for_others"]),
        (1, ["load_into_one_process", "load_from_others"]),
        (2, ["load_from_others"]),
        (3, ["load_from_others"]),
    ):
        ranks.run("cases_checkpoint", world, names, tmp_path)


def test_snippets_of_the_documentation() -> None:
    ranks.check("cases_docs", 2)
