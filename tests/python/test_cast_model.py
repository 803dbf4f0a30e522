"""`cast_model`: what is cast, what stays, and what stays tied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Layers of all kinds that matter, with the last one's weight tied to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8)
        self.batch_norm = nn.BatchNorm1d(8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.ones(8))
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens)) * self.table
        x = self.middle(self.batch_norm(x))
        return self.head(x)


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: tensor.dtype for name, tensor in tensors}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_parameters_and_floating_buffers_are_cast_in_place(dtype: torch.dtype) -> None:
    model = Net()
    before = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    assert flash.cast_model(model, dtype) is None
    for name, param in model.named_parameters():
        identity, value = before[name]
        assert id(param) == identity
        assert isinstance(param, nn.Parameter)
        assert param.requires_grad
        assert torch.equal(param.detach(), value.to(param.dtype))
    found = dtypes(model)
    assert {t for name, t in found.items() if "batch_norm" not in name and name != "count"} == {
        dtype
    }
    assert found["count"] == torch.int64


def test_norms_with_running_statistics_stay_unless_told_otherwise() -> None:
    model = Net()
    flash.cast_model(model)
    kept = {name: t for name, t in dtypes(model).items() if "batch_norm" in name}
    assert set(kept.values()) == {torch.float32, torch.int64}
    assert dtypes(model)["norm.weight"] == torch.bfloat16
    flash.cast_model(model, selective=False)
    cast = {name: t for name, t in dtypes(model).items() if "batch_norm" in name}
    assert set(cast.values()) == {torch.bfloat16, torch.int64}


def test_tied_weights_stay_tied() -> None:
    model = Net()
    flash.cast_model(model)
    assert model.head.weight is model.embedding.weight
    shared = nn.Parameter(model.middle.weight.detach())  # another object, the same memory
    assert shared.data_ptr() == model.middle.weight.data_ptr()
    model.twin = nn.Linear(8, 8, bias=False)
    model.twin.weight = shared
    flash.cast_model(model, torch.float16)
    assert model.twin.weight is shared
    assert model.twin.weight.data_ptr() == model.middle.weight.data_ptr()
    assert shared.dtype == torch.float16


def test_an_optimizer_made_before_the_cast_goes_on() -> None:
    model = Net()
    optimizer = flash.FlashAdamW(model.parameters(), lr=0.1)
    flash.cast_model(model)
    before = model.middle.weight.detach().clone()
    model(torch.arange(6)).float().square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.middle.weight.detach())
    assert optimizer.state[model.middle.weight]["weight_correction"].dtype == torch.int8


def test_gradients_of_the_old_dtype_are_dropped() -> None:
    model = nn.Linear(4, 4)
    model(torch.ones(1, 4)).sum().backward()
    flash.cast_model(model)
    assert model.weight.grad is None


@pytest.mark.parametrize("how", ["name", "pattern", "module"])
def test_last_layers_can_stay_in_full_precision(how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    layer = {"name": "1.1", "pattern": "*.1", "module": model[1][1]}[how]
    flash.cast_model(model, full_precision_layers=[layer])
    assert dtypes(model) == {
        "0.weight": torch.bfloat16,
        "0.bias": torch.bfloat16,
        "1.0.weight": torch.bfloat16,
        "1.0.bias": torch.bfloat16,
        "1.1.weight": torch.float32,
        "1.1.bias": torch.float32,
    }
    assert model(torch.ones(3, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_layers_in_between_hand_on_the_narrow_dtype() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    flash.cast_model(model, full_precision_recast_layers=["1"])
    seen: list[torch.dtype] = []
    model[1].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    assert model[1].weight.dtype == torch.float32
    assert model(torch.ones(3, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert seen == [torch.float32]


class Nested(nn.Module):
    """Takes and gives containers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, pair: tuple[Tensor, Tensor], *, extra: dict[str, Any]) -> dict[str, Any]:
        assert pair[0].dtype == pair[1].dtype == extra["x"].dtype == torch.float32
        assert extra["index"].dtype == torch.int64
        return {"sum": [self.weight * pair[0]], "index": extra["index"], "name": "kept"}


def test_inputs_and_outputs_in_containers_are_cast_and_other_values_are_not() -> None:
    model = nn.ModuleDict({"nested": Nested()})
    flash.cast_model(model, full_precision_recast_layers=["nested"])
    x = torch.ones(2, dtype=torch.bfloat16)
    for copied in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        out = copied["nested"]((x, x), extra={"x": x, "index": torch.arange(2)})
        assert out["sum"][0].dtype == torch.bfloat16
        assert out["index"].dtype == torch.int64
        assert out["name"] == "kept"


def test_a_shared_weight_stays_in_full_precision_for_all_that_use_it() -> None:
    model = Net()
    flash.cast_model(model, full_precision_layers=["head"])
    assert model.embedding.weight.dtype == torch.float32
    assert model.head.weight is model.embedding.weight


def test_bad_arguments_are_refused() -> None:
    model = Net()
    with pytest.raises(TypeError, match=r"dtype must be .* not torch.int8"):
        flash.cast_model(model, torch.int8)
    with pytest.raises(ValueError, match="no module of the model matches 'tail'"):
        flash.cast_model(model, full_precision_layers=["tail"])
    assert set(dtypes(model).values()) == {torch.float32, torch.int64}


def test_empty_and_strided_tensors_keep_their_layout() -> None:
    model = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    model.extra = nn.Parameter(torch.zeros(0, 3))
    strides = model.weight.stride()
    flash.cast_model(model)
    assert model.weight.stride() == strides
    assert model.extra.dtype == torch.bfloat16


def test_tensors_on_the_meta_device_are_not_tied_by_their_shape() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        model[2].weight = model[0].weight
    flash.cast_model(model, full_precision_layers=["1"])
    assert model[0].weight.dtype == torch.bfloat16
    assert model[1].weight.dtype == torch.float32
    assert model[2].weight is model[0].weight
    assert model[2].bias is not model[0].bias
    assert model[2].bias.dtype == torch.bfloat16
