"""The native plan of an optimizer and the check, at each step, that it still fits the tensors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor

from . import _C, _options
from ._sharding import is_dtensor, local_of
from ._state import (
    CORRECTION,
    DTYPES,
    MOMENTS,
    STEP,
    STREAM_KEY,
    Layout,
    State,
    lacks_memory,
    naming,
    same_memory_order,
    scale_of,
    weight_of,
)

Groups = Sequence[_options.Group]
States = dict[Tensor, State]

# An empty gradient has no address, but it counts as a step.
_NO_ELEMENTS: Final = 1
_DEVICE_TYPES: Final = {"cpu": _C.DeviceType.CPU, "cuda": _C.DeviceType.CUDA}


@dataclass(frozen=True)
class Entry:
    """A parameter that has state."""

    param: Tensor
    weight: Tensor  # `weight_of(param)`
    name: str
    group: int
    layout: Layout


def usable_gradient(gradient: Tensor, param: Tensor) -> Tensor:
    """The gradient as the native side reads it: real, dense, in the parameter's memory order.

    Returns the gradient itself where that is so, else a copy.

    Raises:
        RuntimeError: the gradient is sparse.
        TypeError: its dtype cannot be read, or it is a subclass without memory of its own.
        ValueError: its shape or device is not the parameter's, it is cut in another way, or its
            memory has been freed.
    """
    _check_placement(gradient, param)
    gradient, part = local_of(gradient), local_of(param)
    if hasattr(gradient, "__tensor_flatten__"):
        raise TypeError(
            f"its gradient is a {type(gradient).__name__}, which has no memory of its own; set a "
            "plain tensor"
        )
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"its gradient is sparse ({gradient.layout}); use a dense one, for instance "
            "torch.nn.Embedding(..., sparse=False)"
        )
    if gradient.shape != part.shape or gradient.device != part.device:
        raise ValueError(
            f"its gradient is {list(gradient.shape)} on {gradient.device}, and the parameter "
            f"{list(part.shape)} on {part.device}; call zero_grad() after changing a parameter"
        )
    readable = (torch.complex64,) if param.is_complex() else DTYPES
    if gradient.dtype not in readable:
        raise TypeError(
            f"its gradient is {gradient.dtype} and the parameter {param.dtype}; bfloat16, float16 "
            "and float32 gradients can be read, and complex64 ones of complex64 parameters"
        )
    if lacks_memory(gradient):
        raise ValueError(
            "its gradient has no memory: its storage was freed, or it was made under a mode that "
            "allocates none; compute it again"
        )
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    gradient, weight = gradient.resolve_neg(), weight_of(param)
    if same_memory_order(gradient, weight):
        return gradient
    return torch.empty_like(weight, dtype=gradient.dtype).copy_(gradient)


def _check_placement(gradient: Tensor, param: Tensor) -> None:
    """Checks that a gradient is cut as its parameter.

    A step communicates with no other process: one of them might have no gradient and never answer.
    """
    if not is_dtensor(param):
        if is_dtensor(gradient):
            raise ValueError("its gradient is a DTensor and the parameter is not; set a plain one")
        return
    if not is_dtensor(gradient):
        raise ValueError(
            "it is a DTensor and its gradient is not; set one with the parameter's placements"
        )
    found, wanted = gradient.placements, param.placements
    if found != wanted or gradient.device_mesh != param.device_mesh:
        raise ValueError(
            f"its gradient has the placements {found} on {gradient.device_mesh}, and the parameter "
            f"{wanted} on {param.device_mesh}; before the step, on all ranks: param.grad = "
            "param.grad.redistribute(param.device_mesh, param.placements)"
        )


def _binding(entry: Entry, state: State) -> _C.TensorBinding:
    binding, layout, weight = _C.TensorBinding(), entry.layout, entry.weight
    binding.name = entry.name
    binding.device_type = _DEVICE_TYPES[weight.device.type]
    binding.device_index = weight.device.index or 0
    binding.weight = weight.data_ptr()
    binding.weight_dtype = DTYPES[weight.dtype]
    binding.codec = layout.codec
    binding.correction_bits = layout.correction_bits
    if layout.correction_bits:
        binding.correction = local_of(state[CORRECTION]).data_ptr()
    for moment in layout.moments:
        attribute = MOMENTS[moment].attribute
        setattr(binding, attribute, local_of(state[moment]).data_ptr())
        if layout.codec != _C.Codec.NONE:
            scale = local_of(state[scale_of(moment)])
            setattr(binding, scale_of(attribute), scale.data_ptr())
    binding.rows = layout.geometry.rows
    binding.row_length = layout.geometry.row_length
    if layout.sharding is not None:
        binding.first_group = layout.sharding.first_group
        binding.group_stride = layout.sharding.group_stride
        binding.first_in_group = layout.sharding.first_in_group
    binding.step = state[STEP].data_ptr()
    binding.step_on_device = layout.step_device.type == "cuda"
    binding.stream_key = int(state[STREAM_KEY])
    binding.parameter_group = entry.group
    return binding


class _PythonReader:
    """What `_C.TensorReader` does, for a torch that lacks its C functions (before 2.10)."""

    def snapshot(
        self, groups: list[list[Tensor]], tracked: list[Tensor], state: States
    ) -> tuple[list[list[Tensor]], list[Tensor], list[Any]]:
        stateless = {param for params in groups for param in params}.difference(tracked)
        return groups, list(stateless), self._places(tracked, state)

    def _places(self, tracked: Iterable[Tensor], state: States) -> list[Any]:
        values = [value for entries in state.values() for value in entries.values()]
        weights = [local_of(param) for param in tracked]
        return [
            *((weight.dtype, weight.shape, weight.stride()) for weight in weights),
            *(weight.data_ptr() for weight in weights),
            *(local_of(value).data_ptr() for value in values if isinstance(value, Tensor)),
        ]

    def holds(
        self,
        snapshot: tuple[list[list[Tensor]], list[Tensor], list[Any]],
        groups: list[list[Tensor]],
        state: States,
    ) -> bool:
        expected, stateless, places = snapshot
        groups = [list(params) for params in groups]
        if list(map(len, groups)) != list(map(len, expected)):
            return False
        parameters = list(chain(*groups))
        if not all(map(is_, parameters, chain(*expected))):
            return False
        if any(param.grad is not None for param in stateless):
            return False
        without = set(stateless)
        tracked = dict.fromkeys(param for param in parameters if param not in without)
        return self._places(tracked, state) == places

    def read_gradients(
        self,
        plan: _C.Plan,
        snapshot: object,
        tracked: list[Tensor],
        stepped: list[Tensor],
    ) -> list[int]:
        others = []
        for index, param in enumerate(tracked):
            if param.grad is None:
                plan.set_gradient(index, 0, _C.DType.FLOAT32)
            else:
                stepped.append(param)
                others.append(index)
        return others


def asks_for_addresses(reader: _C.TensorReader) -> bool:
    """Whether the reader asks torch's C interface for addresses: if this torch has it."""
    try:
        torch_cpu = ctypes.CDLL("libtorch_cpu.so", os.RTLD_NOW | os.RTLD_NOLOAD)
        function = ctypes.cast(torch_cpu.aoti_torch_get_data_ptr, ctypes.c_void_p).value
    except (AttributeError, OSError):
        return False
    tensor = torch.empty(2, device="cpu")
    return function is not None and reader.ask_addresses(function, [tensor, tensor[1]])


def _make_reader() -> _C.TensorReader | _PythonReader:
    try:
        reader = _C.TensorReader(Tensor)
    except TypeError:
        return _PythonReader()
    asks_for_addresses(reader)
    return reader


_READER: Final = _make_reader()


def _stream_of(device: torch.device) -> int:
    """The current stream of a GPU."""
    # The public function makes an object, which takes as long as a launch.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(torch.cuda.current_stream(device).cuda_stream if raw is None else raw(device.index))


def counts_on_host(groups: Groups) -> bool:
    """Whether a step has to know on the host if GradScaler found an infinity."""
    return not all(
        group["capturable"] and all(param.is_cuda for param in group["params"]) for group in groups
    )


class StepPlan:
    """Everything that a step needs, prepared once.

    Holds the parameters but not the state tensors, so that a state moved elsewhere is freed; their
    addresses are compared before every step instead.
    """

    _first_group = 0  # the number of the first group, for messages

    def __init__(
        self, kind: _options.RuleKind, groups: Groups, entries: Sequence[Entry], state: States
    ) -> None:
        self.entries = entries
        self._kind = kind
        # Kept alive, since the snapshot knows them by their addresses.
        self._params = [list(group["params"]) for group in groups]
        self._tracked: list[Tensor] = [entry.param for entry in entries]
        self._snapshot: Any = _READER.snapshot(self._params, self._tracked, state)
        self._native = _C.Plan(
            kind.rule, [_binding(e, state[e.param]) for e in entries], len(groups)
        )

        self._structures = [kind.structure(group) for group in groups]
        self._values: list[tuple[Any, ...] | None] = [None] * len(groups)
        for index, group in enumerate(groups):
            self._push(index, group, kind.read(group))

        devices = {entry.weight.device for entry in entries}
        self._host_scalars = any(entry.layout.step_device.type != "cuda" for entry in entries)
        self._gpus = {device for device in devices if device.type == "cuda"}

    def fits(self, groups: Groups, state: States) -> bool:
        """Whether the plan is still right; passes changed hyper-parameters on.

        Raises:
            ValueError, TypeError: a hyper-parameter is not valid.
        """
        params = [group["params"] for group in groups]
        return _READER.holds(self._snapshot, params, state) and self._follow(groups)

    def _follow(self, groups: Groups) -> bool:
        for index, group in enumerate(groups):
            values = self._kind.read(group)
            try:
                if values == self._values[index]:
                    continue
            except RuntimeError:
                pass  # a tensor of several elements, which cannot be compared: `_push` refuses it
            if self._kind.structure(group) != self._structures[index]:
                return False
            self._push(index, group, values)
        return True

    def _push(self, index: int, group: _options.Group, values: tuple[Any, ...]) -> None:
        try:
            hyperparameters = _options.hyperparameters(group, self._kind)
            self._native.set_hyperparameters(index, hyperparameters)
            device_lr = _options.device_lr(group)
            lr_address = 0 if device_lr is None else device_lr.data_ptr()
            self._native.set_device_learning_rate(index, lr_address)
        except (TypeError, ValueError) as error:
            number = self._first_group + index
            raise type(error)(f"parameter group {number}: {error}") from None
        # A tensor may change in place, so a group with one is read anew at every step.
        # One on a GPU is read there, or once: reading it here would wait for the GPU.
        constant = not any(
            isinstance(value, Tensor) and not (group["capturable"] and value.is_cuda)
            for value in _flat(values)
        )
        self._values[index] = values if constant else None

    def step(self, scale: Tensor | None, found_inf: Tensor | None) -> int:
        """Steps all parameters that have a gradient.

        Args:
            scale, found_inf: what GradScaler gives, float32 on the GPU.

        Returns:
            The number of tensors that ``nonfinite="skip"`` left alone.

        Raises:
            RuntimeError, TypeError, ValueError: a gradient cannot be used; nothing was written.
        """
        if self._host_scalars:
            self._native.set_gradient_scale(1.0 if scale is None else float(scale))
        stepped: list[Tensor] = []
        others = _READER.read_gradients(self._native, self._snapshot, self._tracked, stepped)
        copies = []
        if others:
            with torch.no_grad():
                copies = [self._set_gradient(index, self._tracked[index].grad) for index in others]
        if not stepped:
            return 0
        skipped = self._run(scale, found_inf)
        torch.autograd.graph.increment_version(stepped)
        del copies  # the native step has read them
        return skipped

    def _run(self, scale: Tensor | None, found_inf: Tensor | None) -> int:
        """Steps with the gradients that are set; returns the number of tensors left alone."""
        kept = []  # copies for other GPUs, until the step has been enqueued
        for device in self._gpus:
            self._check_capture(device)
            self._native.set_stream(device.index, _stream_of(device))
            addresses = [0, 0]
            for index, value in enumerate((scale, found_inf)):
                if value is not None:
                    there = value.to(device)
                    kept.append(there)
                    addresses[index] = there.data_ptr()
            self._native.set_gradient_scaling(device.index, *addresses)
        return self._native.step()

    def _check_capture(self, device: torch.device) -> None:
        if torch.cuda.is_current_stream_capturing() and any(
            entry.layout.step_device.type != "cuda"
            for entry in self.entries
            if entry.weight.device == device
        ):
            raise RuntimeError(
                "a CUDA graph is being captured, and would replay this step with its learning rate "
                "and step count; construct the optimizer with capturable=True"
            )

    def _set_gradient(self, index: int, gradient: Tensor | None) -> Tensor:
        """Sets a gradient that the reader cannot; returns what must be kept alive."""
        entry = self.entries[index]
        assert gradient is not None
        with naming(entry.name):
            usable = usable_gradient(gradient, entry.param)
        self._native.set_gradient(index, usable.data_ptr() or _NO_ELEMENTS, DTYPES[usable.dtype])
        return usable


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from value
        else:
            yield value
