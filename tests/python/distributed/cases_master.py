"""fp32 master weights and files of sharded parameters."""

from __future__ import annotations

from pathlib import Path

import flashoptim_cpp as flash
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cases_checkpoint import STEPS, pair, unsharded
from common import same_bits
from ranks import case
from sharded import everything, train, whole
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor


@case(2, 3)
def master_weights_of_shards(directory: Path) -> None:
    for bits in (24, 32):
        model, optimizer = pair(master_weight_bits=bits)
        twin, reference = unsharded(master_weight_bits=bits)
        for m, o in ((model, optimizer), (twin, reference)):
            train(m, o, STEPS)
        found = optimizer.get_fp32_model_state_dict(model)
        wanted = reference.get_fp32_model_state_dict(twin)
        for (name, value), param in zip(found.items(), model.parameters(), strict=True):
            assert isinstance(value, DTensor), name
            assert value.placements == param.placements
        assert same_bits(whole(found), wanted)
        for param in model.parameters():
            if param.dtype == torch.float32:
                continue
            correction = optimizer.state[param]["weight_correction"]
            master = flash.reconstruct_fp32_param(param, correction)
            assert isinstance(master, DTensor)
            made = flash.compute_ecc_bits(master, param, bits // 8)
            assert same_bits(whole(made), whole(correction))

        path = directory / str(bits)
        dcp.save(found, checkpoint_id=path)
        other, loaded = pair(master_weight_bits=bits)
        train(other, loaded, range(7, 8))
        target: dict[str, Tensor] = loaded.get_fp32_model_state_dict(other)
        dcp.load(target, checkpoint_id=path)
        for state_dict in (target, wanted, {name: whole(value) for name, value in target.items()}):
            train(other, loaded, range(8, 9))
            loaded.set_fp32_model_state_dict(other, state_dict)
            assert same_bits(whole(loaded.get_fp32_model_state_dict(other)), wanted)
        plain, plain_optimizer = unsharded(master_weight_bits=bits)
        train(plain, plain_optimizer, range(1, 2))
        plain_optimizer.set_fp32_model_state_dict(plain, target)
        assert same_bits(plain_optimizer.get_fp32_model_state_dict(plain), wanted)


@case(2, 3)
def master_weights_set_before_the_first_step(directory: Path) -> None:
    """All their bits are kept, and a checkpoint can be read into the state that this makes."""
    for bits in (24, 32):
        twin, reference = unsharded(master_weight_bits=bits)
        train(twin, reference, STEPS)
        weights = reference.get_fp32_model_state_dict(twin)
        model, optimizer = pair(master_weight_bits=bits)
        optimizer.set_fp32_model_state_dict(model, weights)
        assert same_bits(whole(optimizer.get_fp32_model_state_dict(model)), weights)
        assert all(optimizer.state.get(param) for param in model.parameters())
        plain, unstepped = unsharded(master_weight_bits=bits)
        unstepped.set_fp32_model_state_dict(plain, weights)
        for m, o in ((model, optimizer), (plain, unstepped)):
            train(m, o, range(6, 8))
        assert same_bits(everything(model, optimizer), everything(plain, unstepped))

        saved = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(saved, checkpoint_id=directory / str(bits))
        other, fresh = pair(master_weight_bits=bits)
        fresh.set_fp32_model_state_dict(other, weights)
        found = dict(zip(("model", "optimizer"), get_state_dict(other, fresh), strict=True))
        dcp.load(found, checkpoint_id=directory / str(bits))
        set_state_dict(
            other, fresh, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
        )
        assert same_bits(everything(model, optimizer), everything(other, fresh))


@case(2)
def files_of_one_process_refuse_shards(directory: Path) -> None:
    model, optimizer = pair()
    train(model, optimizer, STEPS)
    path = directory / "model.safetensors"
    for call in (flash.save_checkpoint, flash.load_checkpoint):
        with pytest.raises(ValueError, match=r"'0.weights.0': it is a DTensor.*full_state_dict"):
            call(path, model, optimizer)
    assert not path.exists()
