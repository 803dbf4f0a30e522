"""Gradients and parameters of every dtype and memory layout, and gradients that are refused."""

from __future__ import annotations

import itertools
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, bits_of, mixed_parameters, parameter, same_bits, set_gradients, train
from torch import Tensor, nn

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def with_gradient(param: nn.Parameter, gradient: Tensor) -> None:
    """Gives a parameter a gradient that torch's own checks would refuse."""
    param.grad = torch.zeros_like(param)
    param.grad.data = gradient


@pytest.mark.parametrize(("weight", "gradient"), [*itertools.product(FLOATS, FLOATS)], ids=str)
def test_weights_and_gradients_of_all_dtypes_mix(
    weight: torch.dtype, gradient: torch.dtype
) -> None:
    """C1."""
    mixed, plain = parameter(5, 70, dtype=weight), parameter(5, 70)
    with torch.no_grad():
        plain.copy_(mixed)
    optimizers = [
        rule([param], lr=1e-3, master_weight_bits=32, quantize=False)
        for rule, param in ((flash.FlashAdamW, mixed), (flash.FlashAdamW, plain))
    ]
    for step in range(5):
        set_gradients([plain], step)
        with_gradient(plain, plain.grad.to(gradient).float())
        with_gradient(mixed, plain.grad.to(gradient))
        for optimizer in optimizers:
            optimizer.step()
    # The moments do not depend on the weight's dtype; the weight is the 16-bit one nearest to it.
    assert same_bits(
        *(o.state[p]["exp_avg_sq"] for o, p in zip(optimizers, (mixed, plain), strict=True))
    )
    tolerance = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 0.0}[weight]
    torch.testing.assert_close(mixed.detach().float(), plain.detach(), rtol=tolerance, atol=1e-7)


def layouts() -> dict[str, Tensor]:
    """Dense tensors of one shape and content in different memory orders."""
    x = torch.randn(6, 8, 3, 5)
    return {
        "channels_last": x.to(memory_format=torch.channels_last),
        "reversed": x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        "swapped": x.transpose(1, 3).contiguous().transpose(1, 3),
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layout", ["channels_last", "reversed", "swapped"])
def test_a_dense_layout_steps_like_the_contiguous_tensor_of_its_memory(
    rule: str, layout: str
) -> None:
    """C13."""
    make, options = RULES[rule]
    strided = layouts()[layout]
    order = sorted(range(4), key=lambda d: -strided.stride(d))
    param = nn.Parameter(strided)
    flat = nn.Parameter(strided.permute(order).clone())
    assert flat.is_contiguous()
    assert not param.is_contiguous()
    one, two = make([param], **options), make([flat], **options)
    for step in range(4):
        set_gradients([param], step)
        flat.grad = param.grad.permute(order).contiguous()
        if step == 2:  # the same gradient laid out differently
            with_gradient(param, param.grad.contiguous())
        one.step()
        two.step()
    assert same_bits(param.permute(order).detach(), flat.detach())
    for name, value in one.state[param].items():
        if value.shape == param.shape:
            assert value.stride() == param.stride()
            value = value.permute(order)
        assert same_bits(value, two.state[flat][name]), name


def test_a_transposed_view_as_leaf_parameter() -> None:
    """C13."""
    stored = torch.randn(64, 10)
    param = nn.Parameter(stored.t())
    before = stored.clone()
    optimizer = flash.FlashAdamW([param], lr=0.1)
    param.grad = torch.ones(10, 64)
    optimizer.step()
    assert float((stored - before).max()) < -0.09


def test_dimensions_of_one_element_do_not_count_as_another_layout() -> None:
    param = parameter(6, 8, 1, 1)
    optimizer = flash.FlashAdamW([param], lr=0.1)
    gradient = torch.ones(6, 8, 1, 1).as_strided((6, 8, 1, 1), (8, 1, 8, 8))
    before = param.detach().clone()
    with_gradient(param, gradient)
    assert param.grad.stride() == (8, 1, 8, 8)
    optimizer.step()
    torch.testing.assert_close(param.detach(), before - 0.1 - before * 0.1 * 1e-2)


@pytest.mark.parametrize(
    "gradient",
    [
        torch.ones(1, 1).expand(6, 8),
        torch.ones(6, 16)[:, ::2],
        torch.ones(8, 6).t(),
        torch.ones(12, 8)[::2],
    ],
    ids=["expanded", "strided", "transposed", "rows"],
)
def test_a_gradient_with_holes_or_overlaps_is_read_right(gradient: Tensor) -> None:
    """C13."""
    results = []
    for g in (gradient, torch.ones(6, 8)):
        torch.manual_seed(0)
        param = parameter(6, 8)
        optimizer = flash.FlashAdamW([param])
        for _ in range(2):
            with_gradient(param, g)
            optimizer.step()
        results.append(param.detach())
    assert same_bits(*results)


@pytest.mark.parametrize("rule", RULES)
def test_a_complex_parameter_is_two_real_ones(rule: str) -> None:
    """C21."""
    make, options = RULES[rule]
    z = nn.Parameter(torch.randn(5, 40, dtype=torch.complex64))
    x = nn.Parameter(torch.view_as_real(z.detach()).clone())
    one, two = make([z], **options), make([x], **options)
    for step in range(4):
        set_gradients([x], step)
        gradient = torch.view_as_complex(x.grad)
        # A lazily conjugated gradient, as the backward pass of conj() gives.
        z.grad = gradient.conj().resolve_conj().conj() if step % 2 else gradient
        one.step()
        two.step()
    assert same_bits(torch.view_as_real(z.detach()), x.detach())
    assert same_bits(dict(one.state[z]), dict(two.state[x]))


def test_a_lazily_conjugated_gradient_of_the_backward_pass() -> None:
    z = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
    target = torch.randn(4, 4, dtype=torch.complex64)
    optimizer = flash.FlashSGD([z], lr=0.4)
    for _ in range(100):
        optimizer.zero_grad()
        (z.conj() - target).abs().pow(2).sum().backward()
        optimizer.step()
    torch.testing.assert_close(z.detach(), target.conj().resolve_conj(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [4, 0])
def test_a_sparse_gradient_is_refused_before_anything_is_written(rows: int) -> None:
    """C21."""
    dense = parameter(4, 8)
    table = nn.Embedding(max(rows, 1), 8, sparse=True)
    optimizer = flash.FlashAdamW([("dense", dense), ("table", table.weight)])
    before = dense.detach().clone()
    dense.grad = torch.ones_like(dense)
    table(torch.arange(rows)).sum().backward()
    for _ in range(2):
        with pytest.raises(
            RuntimeError,
            match=r"parameter 1 of group 0 \(table\): its gradient is sparse.*sparse=False",
        ):
            optimizer.step()
    assert same_bits(before, dense.detach())
    assert not optimizer.state


REFUSED = [
    (torch.zeros(4, 9), ValueError, r"its gradient is \[4, 9\]"),
    (torch.zeros(8, 4), ValueError, r"its gradient is \[8, 4\]"),
    (torch.zeros(4, 8, dtype=torch.float64), TypeError, "its gradient is torch.float64"),
    (torch.zeros(4, 8, dtype=torch.int32), TypeError, "its gradient is torch.int32"),
]


@pytest.mark.parametrize(("gradient", "error", "message"), REFUSED, ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_a_gradient_that_cannot_be_used_is_refused_before_anything_is_written(
    gradient: Tensor, error: type[Exception], message: str, first: bool
) -> None:
    params = [parameter(4, 8), parameter(4, 8)]
    optimizer = flash.FlashAdamW(params)
    if not first:
        train(params, optimizer, range(2))
    before = bits_of(params, optimizer)
    set_gradients(params, 5)
    with_gradient(params[1], gradient)
    with pytest.raises(error, match=f"parameter 1 of group 0: {message}"):
        optimizer.step()
    assert same_bits(bits_of(params, optimizer), before)


@pytest.mark.parametrize("rule", RULES)
def test_empty_tensors_anywhere_disturb_nothing(rule: str) -> None:
    """C15."""
    make, options = RULES[rule]
    shapes = [(4, 64), (65,), (3, 3), (2, 100)]
    torch.manual_seed(0)
    full = [parameter(*shape) for shape in shapes]
    alone = make(full, **options)
    for slot in range(len(shapes) + 1):
        torch.manual_seed(0)
        params = [parameter(*shape) for shape in shapes]
        copies = list(params)
        # Added last, so that the others keep their stream keys, but placed in every slot.
        optimizer = make(params, **options)
        empty = parameter(8, 0)
        optimizer.param_groups[0]["params"].insert(slot, empty)
        for step in range(3):
            set_gradients(copies, step)
            empty.grad = torch.zeros_like(empty)
            optimizer.step()
        if slot == 0:
            train(full, alone, range(3))
        assert same_bits([p.detach() for p in copies], [p.detach() for p in full])
        assert float(optimizer.state[empty]["step"]) == 3


@pytest.mark.parametrize("rule", RULES)
def test_hundreds_of_tensors_of_mixed_sizes_step_as_each_alone(rule: str) -> None:
    """B20."""
    make, options = RULES[rule]
    sizes = [(), (0,), (1,), (63,), (64,), (65,), (3, 64), (2, 0), (5, 65), (40, 41), (2, 3, 4, 5)]
    shapes = [sizes[i * i % 11] for i in range(320)]
    params = [parameter(*shape, dtype=FLOATS[i % 3]) for i, shape in enumerate(shapes)]
    chosen = [0, 1, 2, 3, 4, 5, 318, 319]
    copies = {i: nn.Parameter(params[i].detach().clone()) for i in chosen}
    together = make(params, **options)
    apart = {}
    for i in chosen:
        apart[i] = make([copies[i]], **options)
        apart[i]._stream_keys.of = {copies[i]: i}  # the key that it has among the others
    for step in range(3):
        set_gradients(params, step)
        for i in chosen:
            copies[i].grad = params[i].grad.clone()
            apart[i].step()
        together.step()
    for i in chosen:
        assert same_bits(params[i].detach(), copies[i].detach())
        assert same_bits(dict(together.state[params[i]]), dict(apart[i].state[copies[i]]))


def test_no_parameter_with_a_gradient_and_all_parameters_empty() -> None:
    """C15."""
    params = [parameter(4), parameter(0), parameter(3, 0)]
    optimizer = flash.FlashAdamW(params)
    optimizer.step()
    assert not optimizer.state
    for param in params[1:]:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert len(optimizer.state) == 2


def test_a_late_first_gradient_starts_at_step_one() -> None:
    """C16."""
    early, late = parameter(4, 64), parameter(4, 64)
    optimizer = flash.FlashAdamW([early, late])
    train([early], optimizer, range(6))
    assert late not in optimizer.state
    train([early, late], optimizer, range(6, 7))
    assert float(optimizer.state[late]["step"]) == 1
    assert float(optimizer.state[early]["step"]) == 7


def test_the_stream_of_a_parameter_does_not_depend_on_when_its_gradient_comes() -> None:
    params = [parameter(4, 64) for _ in range(3)]
    optimizer = flash.FlashAdamW(params)
    for index in (2, 0, 1):
        set_gradients([params[index]], 0)
        optimizer.step()
    assert [int(optimizer.state[p]["stream_key"]) for p in params] == [0, 1, 2]


def test_equal_tensors_do_not_share_a_random_stream() -> None:
    params = [nn.Parameter(torch.ones(8, 64)) for _ in range(2)]
    optimizer = flash.FlashAdamW(params)
    for step in range(20):
        set_gradients(params[:1], step)
        params[1].grad = params[0].grad.clone()
        optimizer.step()
    assert not torch.equal(*(optimizer.state[p]["exp_avg_sq"] for p in params))


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_decides_the_random_bits(rule: str) -> None:
    make, options = RULES[rule]
    results: list[Any] = []
    for seed in (0, 0, 1, 2**64 - 1):
        torch.manual_seed(0)
        params = mixed_parameters()
        optimizer = make(params, stochastic_rounding=True, seed=seed, **options)
        train(params, optimizer, range(5))
        results.append([p.detach() for p in params])
    assert same_bits(results[0], results[1])
    assert not same_bits(results[0], results[2])
    assert not same_bits(results[2], results[3])


def test_a_step_is_seen_by_autograd_as_a_change_in_place() -> None:
    param = parameter(4, 8)
    optimizer = flash.FlashSGD([param], lr=0.1)
    loss = (param * param).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
