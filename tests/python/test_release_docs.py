"""The snippets of docs/gradient-release.md."""

from __future__ import annotations

from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import same_bits
from release_common import loss_of, net
from snippets import ROOT, python_blocks

PAGE = ROOT / "docs" / "gradient-release.md"


@pytest.mark.filterwarnings("ignore:gradient release is on")
def test_the_snippets_run_and_train() -> None:
    model = net()
    names: dict[str, Any] = {
        "model": model,
        "batches": range(6),
        "loss_of": loss_of,
        "torch": torch,
    }
    blocks = python_blocks(PAGE)
    assert len(blocks) == 5
    for block in blocks:
        before = [param.detach().clone() for param in model.parameters()]
        exec(compile(block, str(PAGE), "exec"), names)
        after = [param.detach() for param in model.parameters()]
        assert not any(map(same_bits, before, after)), block
        assert not names["handle"].active
    assert isinstance(names["optimizer"], flash.FlashAdamW)
