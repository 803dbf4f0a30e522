"""What is kept for a parameter, under which names and in which form (docs/format.md)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from . import _C, _options
from ._geometry import Geometry, geometry_of
from ._sharding import Sharding, is_dtensor, local_of, sharding_of

State = dict[str, Any]


class Moment(NamedTuple):
    """A moment's kind, and the attribute of the native binding that holds its address."""

    kind: _C.Moment
    attribute: str


MOMENTS: Final = {
    "momentum_buffer": Moment(_C.Moment.FIRST, "first_moment"),
    "exp_avg": Moment(_C.Moment.FIRST, "first_moment"),
    "exp_avg_sq": Moment(_C.Moment.SECOND, "second_moment"),
    "max_exp_avg_sq": Moment(_C.Moment.SECOND, "maximum"),
}
CORRECTION: Final = "weight_correction"
STEP: Final = "step"
STREAM_KEY: Final = "stream_key"

HOST_DTYPES: Final = {STEP: torch.float32, STREAM_KEY: torch.int64}
CODE_DTYPES: Final = {_C.Moment.FIRST: torch.int8, _C.Moment.SECOND: torch.uint8}
CORRECTION_DTYPES: Final = {8: torch.int8, 16: torch.int16}
DTYPES: Final = {
    torch.bfloat16: _C.DType.BFLOAT16,
    torch.float16: _C.DType.FLOAT16,
    torch.float32: _C.DType.FLOAT32,
}

_REMEDY: Final = "load the state dict again, or delete the parameter's state to start afresh"


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts a parameter's name before the message of an error."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        raise type(error)(f"{name}: {error}") from None


def parameter_name(groups: Sequence[_options.Group], group: int, position: int) -> str:
    """How messages call a parameter: by its place, and by its name if the optimizer knows it."""
    name = f"parameter {position} of group {group}"
    names = groups[group].get("param_names")
    return f"{name} ({names[position]})" if names else name


def scale_of(moment: str) -> str:
    """Name of the scales of a moment."""
    return f"{moment}_scale"


SCALES: Final = frozenset(map(scale_of, MOMENTS))


@dataclass(frozen=True)
class Layout:
    """How the state of one parameter is stored."""

    codec: _C.Codec
    correction_bits: int
    moments: tuple[str, ...]
    geometry: Geometry  # of what this process holds of the weight
    step_device: torch.device  # the host, or the weight's GPU with `capturable`
    sharding: Sharding | None  # of a DTensor

    def place(self, name: str, local: Tensor) -> Tensor:
        """A state tensor from this process's elements: cut as the weight."""
        if self.sharding is None or name in HOST_DTYPES:
            return local
        if name in SCALES:
            return self.sharding.scale_like(local)
        return self.sharding.weight_like(local)


class Stored(NamedTuple):
    """A state tensor as the format defines it: scales have a shape, the others the weight's."""

    dtype: torch.dtype
    scale_shape: tuple[int, int] | None
    fresh: float


def weight_of(param: Tensor) -> Tensor:
    """The real, dense tensor in which a parameter's elements lie; complex ones count as two reals.

    Of a DTensor these are the elements that this process holds. This is the one place that looks
    behind a parameter.

    Raises:
        TypeError: a dtype or memory layout that cannot be stepped, or memory that holds negatives.
        NotImplementedError: a device that this build cannot step.
    """
    param = local_of(param)
    if hasattr(param, "__tensor_flatten__"):
        raise TypeError(
            f"it is a {type(param).__name__}; plain tensors and DTensors of them can be stepped"
        )
    if param.layout is not torch.strided or param.is_nested:
        layout = "nested" if param.is_nested else param.layout
        raise TypeError(f"its layout is {layout}; only dense (strided) tensors can be stepped")
    with torch._C.DisableTorchFunctionSubclass():
        weight = param.detach()  # a plain tensor of every other kind, so that all state is plain
    if weight.dtype == torch.complex64:
        weight = torch.view_as_real(weight)
    if weight.dtype not in DTYPES:
        raise TypeError(
            f"its dtype is {weight.dtype}, and bfloat16, float16, float32 and complex64 can be "
            "stepped; convert the model, for instance with model.to(torch.bfloat16)"
        )
    if weight.is_neg():
        raise TypeError(
            "its memory holds its negative, as the imaginary part of a conjugate does; make it "
            "from tensor.resolve_neg()"
        )
    check_device(weight.device)
    return weight


def lacks_memory(tensor: Tensor) -> bool:
    """Whether a dense tensor has elements and no memory: freed, on the meta device, or fake."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    fake = fakes is not None and isinstance(tensor, fakes.FakeTensor)
    return tensor.numel() > 0 and (fake or tensor.data_ptr() == 0)


def check_device(device: torch.device) -> None:
    """Raises NotImplementedError, with the reason and a remedy, if a device cannot be stepped."""
    if device.type == "cpu" or (device.type == "cuda" and _C.cuda_available()):
        return
    if device.type == "meta":
        raise NotImplementedError(
            "it is on the meta device and has no memory; materialise the model first, for instance "
            "with model.to_empty(device=...)"
        )
    reason = f" ({_C.cuda_status()})" if device.type == "cuda" else ""
    usable = "CPU and CUDA" if _C.cuda_available() else "CPU"
    raise NotImplementedError(
        f"it is on {device}{reason}; {usable} tensors can be stepped: move it, for instance with "
        "model.to('cpu')"
    )


def codec_of(weight: Tensor, sharding: Sharding | None, group: _options.Group) -> _C.Codec:
    """The codec that a group's options give a weight; the sizes of the whole decide."""
    whole = geometry_of(weight) if sharding is None else sharding.geometry
    return _C.effective_codec(_options.asked_codec(group), weight.dim(), whole.row_length)


def layout_of(param: Tensor, group: _options.Group, kind: _options.RuleKind) -> Layout:
    """The layout that a group's options give a parameter.

    Raises:
        ValueError: the parameter has holes or overlaps, or is cut inside groups.
        TypeError, NotImplementedError: as `weight_of`.
    """
    weight = weight_of(param)
    sharding = sharding_of(param, weight)
    codec = codec_of(weight, sharding, group)
    if sharding and codec != _C.Codec.NONE and not sharding.keeps_groups:
        raise ValueError(
            f"its placements {sharding.placements} cut {list(sharding.shape)} inside groups of "
            f"{_C.GROUP_SIZE} elements, which have one scale; shard it along dimension 0 or at "
            "multiples of a group, or put it into a parameter group with quantize=False"
        )
    return Layout(
        codec=codec,
        correction_bits=_options.correction_bits(group, weight.dtype),
        moments=kind.moments(group),
        geometry=geometry_of(weight) if sharding is None else sharding.part,
        step_device=_options.step_device(group, weight.device),
        sharding=sharding,
    )


def prepare_device(device: torch.device, kind: _options.RuleKind) -> None:
    """Loads what a GPU needs for a first step, which CUDA would do in the middle of it."""
    if device.type == "cuda":
        _C.load_cuda_kernels(kind.rule, device.index)
        for dtype in (*CODE_DTYPES.values(), *CORRECTION_DTYPES.values(), torch.float32):
            torch.full((1,), 0, dtype=dtype, device=device)  # PyTorch's kernels for fresh state


def stored_tensors(layout: Layout) -> dict[str, Stored]:
    """The tensors that a layout keeps, in their fresh state (docs/format.md, sections 7 and 9)."""
    stored = {}
    if layout.correction_bits:
        stored[CORRECTION] = stored_correction(layout.correction_bits)
    for name in layout.moments:
        stored.update(stored_moment(name, layout))
    return stored


def stored_correction(bits: int) -> Stored:
    """A weight correction of 8 or 16 bits."""
    return Stored(CORRECTION_DTYPES[bits], None, 0)


def stored_moment(name: str, layout: Layout) -> dict[str, Stored]:
    """The tensors that keep one moment."""
    if layout.codec == _C.Codec.NONE:
        return {name: Stored(torch.float32, None, 0)}
    kind = MOMENTS[name].kind
    if kind == _C.Moment.FIRST:
        code, scale = 0, _C.fresh_first_scale()
    else:
        code, scale = 255, _C.fresh_second_scale(layout.codec)
    rows, _, groups = layout.geometry
    return {
        name: Stored(CODE_DTYPES[kind], None, code),
        scale_of(name): Stored(torch.float32, (rows, groups), scale),
    }


def allocate(stored: Stored, weight: Tensor) -> Tensor:
    """A fresh state tensor on the weight's device, in the weight's memory order."""
    if stored.scale_shape is None:
        return torch.full_like(weight, stored.fresh, dtype=stored.dtype)
    return torch.full(stored.scale_shape, stored.fresh, dtype=stored.dtype, device=weight.device)


def host_number(name: str, value: int) -> Tensor:
    """A step count or stream key, wherever new tensors go by default."""
    return torch.tensor(value, dtype=HOST_DTYPES[name], device="cpu")


def fresh_state(weight: Tensor, layout: Layout, stream_key: int) -> State:
    """The state of a parameter that has not been stepped."""
    state: State = {
        STEP: host_number(STEP, 0).to(layout.step_device),
        STREAM_KEY: host_number(STREAM_KEY, stream_key),
    }
    for name, stored in stored_tensors(layout).items():
        state[name] = layout.place(name, allocate(stored, weight))
    return state


def same_memory_order(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors of one shape have their elements in the same order in memory."""
    return a.numel() == 0 or all(
        size == 1 or first == second
        for size, first, second in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def check_state(state: State, weight: Tensor, layout: Layout) -> None:
    """Checks that a state is kept as a layout says.

    Raises:
        ValueError: an entry is missing or has another dtype, shape, memory order or device.
    """
    for name, dtype in HOST_DTYPES.items():
        device = layout.step_device if name == STEP else _options.HOST
        _check_tensor(state, name, dtype, (), device)
    for name, stored in stored_tensors(layout).items():
        _check_placement(state, name, layout)
        if stored.scale_shape is not None:
            scale = _check_tensor(state, name, stored.dtype, stored.scale_shape, weight.device)
            in_order = scale.is_contiguous()
        else:
            tensor = _check_tensor(state, name, stored.dtype, tuple(weight.shape), weight.device)
            in_order = same_memory_order(tensor, weight)
        if not in_order:
            raise ValueError(
                f"'{name}' in its state has the strides {state[name].stride()}, which are not the "
                f"memory order of its weight, with strides {weight.stride()}; {_REMEDY}"
            )


def _check_placement(state: State, name: str, layout: Layout) -> None:
    value, sharding = state.get(name), layout.sharding
    if not isinstance(value, Tensor):
        return
    if sharding is None:
        placed, wanted = not is_dtensor(value), "a plain tensor"
    else:
        placements = sharding.scale_placements if name in SCALES else sharding.placements
        placed = sharding.holds(value, placements)
        wanted = f"a DTensor with the placements {placements} on {sharding.mesh}"
    if not placed:
        raise ValueError(f"'{name}' in its state should be {wanted}; {_REMEDY}")


def _check_tensor(
    state: State, name: str, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    tensor = state.get(name)
    if not isinstance(tensor, Tensor):
        raise ValueError(f"its state has no tensor '{name}'; {_REMEDY}")
    tensor = local_of(tensor)
    if tensor.dtype != dtype or tensor.shape != shape or tensor.device != device:
        raise ValueError(
            f"'{name}' in its state is {tensor.dtype} {list(tensor.shape)} on {tensor.device}, and "
            f"should be {dtype} {list(shape)} on {device}; {_REMEDY}"
        )
    return tensor
