"""Gradients and state whose memory is not what they look like: negated, freed, awaited, none."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import flashoptim_cpp as flash
import pytest
import torch
import torch.distributed as dist
from common import bits_of, parameter, same_bits
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("release", [False, True], ids=["plain", "released"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_a_negated_gradient_of_one_element_keeps_its_sign(
    shape: tuple[int, ...], release: bool
) -> None:
    """Autograd leaves such gradients where a conjugate is taken, without a copy."""
    model = nn.Module()
    model.angle = nn.Parameter(torch.zeros(shape))
    optimizer = flash.FlashSGD(model.parameters(), lr=1.0)
    if release:
        flash.enable_gradient_release(model, optimizer)
    seen = []
    model.angle.register_hook(lambda gradient: seen.append(gradient.is_neg()))
    for _ in range(2):  # the first step makes the plan
        optimizer.zero_grad()
        phase = torch.complex(torch.ones(shape), model.angle).conj().resolve_conj()
        torch.view_as_real(phase).sum().backward()
        optimizer.step()
    assert seen == [True, True]
    assert model.angle.sum().item() == 2.0


def test_a_negated_parameter_is_refused() -> None:
    param = torch._neg_view(torch.ones(4, 8)).requires_grad_()
    with pytest.raises(TypeError, match=r"parameter 0 of group 0: .*negative.*resolve_neg"):
        flash.FlashSGD([param], lr=0.1)


@pytest.mark.parametrize("values", [torch.ones(1), torch.rand(4, 64) + 1], ids=["one", "many"])
def test_the_helpers_read_negated_tensors_with_their_sign(values: torch.Tensor) -> None:
    negated = torch._neg_view(values)
    assert negated.is_neg()
    assert same_bits(list(flash.quantize(negated)), list(flash.quantize(-values)))
    narrow = (-values).bfloat16()
    wanted = flash.compute_ecc_bits(-values, narrow)
    assert same_bits(flash.compute_ecc_bits(negated, narrow), wanted)
    seen = torch._neg_view(values.bfloat16())
    master = flash.reconstruct_fp32_param(narrow, wanted)
    assert same_bits(flash.reconstruct_fp32_param(seen, wanted), master)


def test_a_file_holds_a_negated_buffer_with_its_sign(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("phase", torch.tensor([1 + 2j]).conj().imag)
    optimizer = flash.FlashAdamW(model.parameters())
    flash.save_checkpoint(tmp_path / "model.safetensors", model, optimizer)
    model.phase = torch.zeros(1)
    flash.load_checkpoint(tmp_path / "model.safetensors", model, optimizer)
    assert model.phase.item() == -2.0


@pytest.mark.parametrize("stepped", [False, True], ids=["first", "later"])
def test_a_gradient_whose_storage_was_freed_is_refused(stepped: bool) -> None:
    param, other = parameter(4, 64), parameter(4, 64)
    optimizer = flash.FlashAdamW([other, param])
    param.grad, other.grad = torch.ones(4, 64), torch.ones(4, 64)
    if stepped:
        optimizer.step()
    before = [param.detach().clone(), other.detach().clone()]
    param.grad.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="parameter 1 of group 0: its gradient has no memory"):
        optimizer.step()
    assert same_bits([param, other], before)


@pytest.mark.parametrize("stepped", [False, True], ids=["first", "later"])
def test_a_gradient_without_memory_of_its_own_is_refused(stepped: bool) -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashAdamW([param])
    if stepped:
        param.grad = torch.ones(4, 64)
        optimizer.step()
    param.grad = TwoTensor(torch.ones(4, 64), torch.ones(4, 64))
    with pytest.raises(TypeError, match="parameter 0 of group 0: its gradient is a TwoTensor"):
        optimizer.step()
    with FakeTensorMode():
        param.grad = torch.ones(4, 64)
    with pytest.raises((TypeError, ValueError, RuntimeError), match="parameter 0 of group 0"):
        optimizer.step()


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_scale", "weight_correction"])
def test_a_saved_state_whose_storage_was_freed_is_refused(name: str) -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    before = bits_of([param], optimizer)
    saved["state"][0][name].untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=f"parameter 0 of group 0: '{name}' .* has no memory"):
        optimizer.load_state_dict(saved)
    assert same_bits(bits_of([param], optimizer), before)


def test_fp32_weights_without_memory_are_refused() -> None:
    model = nn.Linear(64, 4).bfloat16()
    optimizer = flash.FlashAdamW(model.parameters())
    weights = optimizer.get_fp32_model_state_dict(model)
    weights["weight"].untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="'weight' is without dense memory"):
        optimizer.set_fp32_model_state_dict(model, weights)
    weights["weight"] = torch.empty(4, 64, device="meta")
    with pytest.raises(ValueError, match="'weight' is without dense memory"):
        optimizer.set_fp32_model_state_dict(model, weights)


@pytest.mark.usefixtures("one_rank")
def test_a_gradient_that_a_collective_has_yet_to_bring_is_awaited() -> None:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce

    param, plain = parameter(4, 64), parameter(4, 64)
    with torch.no_grad():
        plain.copy_(param)
    optimizers = [flash.FlashAdamW([p]) for p in (param, plain)]
    for step in range(3):
        plain.grad = torch.full((4, 64), step - 1.0)
        param.grad = all_reduce(plain.grad, "sum", dist.group.WORLD)
        assert isinstance(param.grad, AsyncCollectiveTensor)
        for optimizer in optimizers:
            optimizer.step()
    assert same_bits(param, plain)
