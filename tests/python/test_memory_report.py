"""`memory_report` says what is really allocated."""

from __future__ import annotations

import dataclasses
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, STORAGES, mixed_parameters, parameter, train


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rule", RULES)
def test_the_report_equals_the_sum_of_all_tensors(rule: str, storage: str) -> None:
    make, options = RULES[rule]
    params = mixed_parameters()
    optimizer = make(params, **options, **STORAGES[storage])
    train(params[1:], optimizer, range(2))  # the first has a gradient of no step
    params[0].grad = torch.zeros_like(params[0])
    report = optimizer.memory_report()

    def total(tensors: Any) -> int:
        return sum(t.numel() * t.element_size() for t in tensors)

    state = [value for param in params for value in optimizer.state.get(param, {}).values()]
    kinds = report.by_kind
    assert kinds.weights == total(params)
    assert kinds.gradients == total(p.grad for p in params)
    assert kinds.optimizer == total(state)
    assert (
        report.total == kinds.total == total(params) + total(p.grad for p in params) + total(state)
    )
    for param, row in zip(params, report.parameters, strict=True):
        assert (row.shape, row.numel, row.dtype) == (param.shape, param.numel(), param.dtype)
        assert row.memory.optimizer == total(optimizer.state.get(param, {}).values())


def test_each_kind_of_memory_is_its_formula() -> None:
    param = parameter(128, 256, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([("layer", param)], amsgrad=True)
    train([param], optimizer, range(1))
    n = param.numel()
    assert optimizer.memory_report().parameters[0] == flash.ParameterMemory(
        name="parameter 0 of group 0 (layer)",
        shape=(128, 256),
        dtype=torch.bfloat16,
        codec="root",
        master_weight_bits=24,
        memory=flash.MemoryByKind(
            weights=2 * n,
            gradients=2 * n,
            weight_correction=n,
            first_moment=n,
            second_moment=n,
            maximum=n,
            scales=3 * n // 64 * 4,
            other=4 + 8,
        ),
    )


def test_bytes_per_parameter_of_adamw() -> None:
    param = parameter(512, 512, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(1))
    report = optimizer.memory_report()
    assert report.bytes_per_parameter == pytest.approx(7.125, rel=1e-4)
    assert report.saved_against(16) == pytest.approx(1 - 7.125 / 16, rel=1e-4)
    assert report.saved_against(8) == pytest.approx(1 - 7.125 / 8, rel=1e-3)
    assert report.numel == param.numel()


def test_small_vectors_and_short_rows_are_reported_as_not_quantized() -> None:
    params = [parameter(65536), parameter(65537), parameter(9, 3), parameter(8, 1024)]
    rows = flash.FlashAdamW(params).memory_report().parameters
    assert [row.codec for row in rows] == ["none", "root", "none", "root"]
    assert [row.master_weight_bits for row in rows] == [32] * 4


def test_matrices_of_adapter_size_are_saved_on_too() -> None:
    params = [parameter(8, 1024, dtype=torch.bfloat16) for _ in range(4)]
    optimizer = flash.FlashAdamW(params)
    train(params, optimizer, range(1))
    assert optimizer.memory_report().bytes_per_parameter < 7.13


def test_the_text_is_a_table_of_the_same_numbers() -> None:
    params = [parameter(64, 64, dtype=torch.bfloat16), parameter(64)]
    optimizer = flash.FlashAdamW(params)
    train(params, optimizer, range(1))
    report = optimizer.memory_report()
    text = str(report)
    for field in dataclasses.fields(report.by_kind):
        assert field.name.replace("_", " ") in text
        assert f"{getattr(report.by_kind, field.name):,}" in text
    assert f"{report.total:,}" in text
    assert "bfloat16, 24 bits, root" in text
    assert "float32, 32 bits, none" in text
    assert "saved against 16 bytes per parameter" in text


def test_a_report_without_elements() -> None:
    report = flash.FlashAdamW([parameter(0)]).memory_report()
    assert (report.numel, report.bytes_per_parameter, report.saved_against(16)) == (0, 0.0, 0.0)
    assert "total" in str(report)


def test_frozen_parameters_count_as_weights_whatever_their_dtype() -> None:
    frozen = torch.nn.Parameter(torch.zeros(10, dtype=torch.int8), requires_grad=False)
    report = flash.FlashAdamW([frozen, parameter(2)]).memory_report()
    assert report.by_kind.weights == 10 + 8
    assert (report.parameters[0].codec, report.parameters[0].memory.optimizer) == ("none", 0)
