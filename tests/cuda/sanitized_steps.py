"""Steps small tensors on the GPU and on the CPU through the native plan, and compares the bytes.

Usage: sanitized_steps.py [cpu]     (the CPU in the GPU's place, to try the program)

Made for compute-sanitizer, hence without PyTorch: every tensor has an allocation of its own, which
ends where the tensor ends, and is filled by a copy, so that any access outside of it and any read
of something never written is reported, and nothing else runs on the GPU.
"""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

STEPS = 2
# The second shape has several blocks, the third a tail in every row, and so on.
SHAPES = ((3, 64), (70, 64), (5, 100), (1, 7), (2, 192))
# With ordinary gradients, with NaN and infinities among them, with step counts on the GPU; weights
# rounded to nearest, then at random.
WAYS = ("ordinary", "special", "counted there", "random", "random, counted there")
# Elements before a tensor in its allocation.
OFFSETS = (0, 1, 3)
_SPECIAL = {2: (0x7FC0, 0x7F80, 0xFF80), 4: (0x7FC00000, 0x7F800000, 0xFF800000)}


class Memory(Protocol):
    """Where tensors are."""

    def put(self, data: bytes, offset: int) -> int:
        """Copies bytes into a new allocation, `offset` bytes after its start; their address."""

    def get(self, address: int, size: int) -> bytes:
        """What is there now."""

    def release(self) -> None:
        """Frees all allocations."""


class HostMemory:
    """The CPU's."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def put(self, data: bytes, offset: int) -> int:
        buffer = ctypes.create_string_buffer(bytes(offset) + data, offset + len(data))
        self._kept.append(buffer)
        return ctypes.addressof(buffer) + offset

    def get(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def release(self) -> None:
        self._kept.clear()


class DeviceMemory:
    """The first GPU's, through the driver."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        # The context that the CUDA runtime uses too.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._allocations: list[ctypes.c_uint64] = []

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with CUDA error {status}")

    def put(self, data: bytes, offset: int) -> int:
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(offset + len(data))
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._allocations.append(address)
        whole = bytes(offset) + data
        self._call("cuMemcpyHtoD_v2", address, ctypes.c_char_p(whole), size)
        return address.value + offset

    def get(self, address: int, size: int) -> bytes:
        self._call("cuCtxSynchronize")
        buffer = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def release(self) -> None:
        self._call("cuCtxSynchronize")
        while self._allocations:
            self._call("cuMemFree_v2", self._allocations.pop())


@dataclass(frozen=True)
class Rule:
    """A rule with the moments that it keeps."""

    name: str
    rule: str
    moments: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


RULES = (
    Rule("sgd", "SGD", ()),
    Rule("sgd momentum", "SGD", ("first_moment",), {"momentum": 0.9, "nesterov": True}),
    Rule("adam", "ADAM", ("first_moment", "second_moment"), {"weight_decay": 0.1}),
    Rule("amsgrad", "ADAM", ("first_moment", "second_moment", "maximum"), {"beta2": 0.8}),
    Rule("lion", "LION", ("first_moment",), {"maximize": True}),
)


@dataclass(frozen=True)
class TensorCase:
    """One tensor and how it is kept."""

    shape: tuple[int, int]
    weight: str
    correction_bits: int
    gradient: str
    codec: str
    offset: int  # in elements


def all_cases() -> Iterator[TensorCase]:
    """Every codec with every storage; shapes with every gradient, offsets taking turns."""
    storages = [("BFLOAT16", bits) for bits in (0, 8, 16)]
    storages += [("FLOAT16", bits) for bits in (0, 8, 16)] + [("FLOAT32", 0)]
    turn = 0
    for codec in ("ROOT", "SOFTSIGN", "NONE"):
        for weight, bits in storages:
            for shape in SHAPES:
                gradient = ("BFLOAT16", "BFLOAT16", "FLOAT16", "FLOAT32")[turn % 4]
                yield TensorCase(shape, weight, bits, gradient, codec, OFFSETS[turn // 2 % 3])
                turn += 1
    # What the fast kernels take.
    for codec in ("ROOT", "SOFTSIGN"):
        for bits in (8, 16):
            for shape in SHAPES:
                yield TensorCase(shape, "BFLOAT16", bits, "BFLOAT16", codec, 0)


def numbers(dtype: str, count: int, source: random.Random, special: bool) -> bytes:
    """Random numbers of the magnitudes of training; NaN and infinities among them if `special`."""
    if dtype == "FLOAT32":
        images = array("I", (source.getrandbits(31) % 0x08000000 for _ in range(count)))
        base, top = 0x38000000, 1 << 31
    else:
        images = array("H", (source.getrandbits(15) % 0x0800 for _ in range(count)))
        base, top = (0x3800 if dtype == "BFLOAT16" else 0x2400), 1 << 15
    for index, image in enumerate(images):
        images[index] = image + base + (top if source.random() < 0.5 else 0)
    if special and dtype != "FLOAT16":
        for index in range(0, count, 97):
            images[index] = source.choice(_SPECIAL[images.itemsize])
    return images.tobytes()


class Stepped:
    """The tensors of one rule in some memory, with a plan."""

    def __init__(
        self,
        native: Any,
        rule: Rule,
        memory: Memory,
        on_gpu: bool,
        count_there: bool,
        random_weights: bool,
    ) -> None:
        self._native, self._rule, self._memory = native, rule, memory
        self._count_there, self._random_weights = count_there, random_weights
        self._cases = list(all_cases())
        self._steps = (ctypes.c_float * len(self._cases))()
        self._step_addresses: list[int] = []
        self._outputs: list[tuple[str, int, int]] = []
        bindings = [self._bind(index, on_gpu) for index in range(len(self._cases))]
        self.plan = native.Plan(native.Rule[rule.rule], bindings, 1)
        self._set_hyperparameters("PROPAGATE")

    def _set_hyperparameters(self, nonfinite: str) -> None:
        values = self._native.Hyperparameters()
        values.seed = 11
        values.stochastic_rounding = self._random_weights
        values.nonfinite = self._native.Nonfinite[nonfinite]
        for name, value in self._rule.options.items():
            setattr(values, name, value)
        self.plan.set_hyperparameters(0, values)

    def _put(self, what: str, data: bytes, element: int, case: TensorCase) -> int:
        address = self._memory.put(data, case.offset * element)
        self._outputs.append((f"{what} of {case}", address, len(data)))
        return address

    def _bind(self, index: int, on_gpu: bool) -> Any:
        native, case = self._native, self._cases[index]
        source = random.Random(index)
        rows, row_length = case.shape
        count, groups = rows * row_length, rows * -(-row_length // native.GROUP_SIZE)
        binding = native.TensorBinding()
        binding.name = str(case)
        binding.device_type = native.DeviceType.CUDA if on_gpu else native.DeviceType.CPU
        binding.rows, binding.row_length, binding.stream_key = rows, row_length, index
        binding.weight_dtype = native.DType[case.weight]
        element = 4 if case.weight == "FLOAT32" else 2
        weight = numbers(case.weight, count, source, special=False)
        binding.weight = self._put("weight", weight, element, case)
        binding.correction_bits = case.correction_bits
        if case.correction_bits:
            wide = case.correction_bits // 8
            binding.correction = self._put("correction", bytes(count * wide), wide, case)
        binding.codec = codec = native.Codec[case.codec]
        for moment in self._rule.moments:
            first = moment == "first_moment"
            if codec == native.Codec.NONE:
                setattr(binding, moment, self._put(moment, bytes(4 * count), 4, case))
                continue
            codes = bytes(count) if first else b"\xff" * count
            setattr(binding, moment, self._put(moment, codes, 1, case))
            fresh = native.fresh_first_scale() if first else native.fresh_second_scale(codec)
            scales = array("f", [fresh] * groups).tobytes()
            setattr(binding, f"{moment}_scale", self._put(f"{moment} scale", scales, 4, case))
        binding.step = ctypes.addressof(self._steps) + 4 * index
        if self._count_there:
            binding.step_on_device = True
            binding.step = self._memory.put(bytes(4), 0)
        self._step_addresses.append(binding.step)
        return binding

    def step(self, number: int, special: bool) -> None:
        """One step with new gradients; those with special values are skipped the second time."""
        self._set_hyperparameters("SKIP" if special and number % 2 else "PROPAGATE")
        for index, case in enumerate(self._cases):
            source = random.Random(1000 * (number + 1) + index)
            count = case.shape[0] * case.shape[1]
            data = numbers(case.gradient, count, source, special and index % 3 == 0)
            element = 4 if case.gradient == "FLOAT32" else 2
            address = self._memory.put(data, case.offset * element)
            self.plan.set_gradient(index, address, self._native.DType[case.gradient])
        self.plan.step()

    def contents(self) -> dict[str, bytes]:
        """All that a step may change."""
        found = {
            f"{index}: {what}": self._memory.get(address, size)
            for index, (what, address, size) in enumerate(self._outputs)
        }
        where = self._memory if self._count_there else HostMemory()
        counts = b"".join(where.get(address, 4) for address in self._step_addresses)
        return {**found, "step counts": counts}


def differences(native: Any, rule: Rule, way: str, on_gpu: bool) -> list[str]:
    """Names of the tensors that are not the same on the GPU and the CPU."""
    special, random_weights = way == "special", way.startswith("random")
    count_there = way.endswith("counted there") and on_gpu
    memory: Memory = DeviceMemory() if on_gpu else HostMemory()
    tested = Stepped(native, rule, memory, on_gpu, count_there, random_weights)
    reference = Stepped(native, rule, HostMemory(), False, False, random_weights)
    for number in range(STEPS):
        tested.step(number, special)
        reference.step(number, special)
    expected, actual = reference.contents(), tested.contents()
    memory.release()
    return [f"{rule.name}: {name}" for name in expected if expected[name] != actual[name]]


def main(arguments: list[str]) -> int:
    # PyTorch would bring its own kernels; the package does without it as well.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    from flashoptim_cpp import _C

    on_gpu = arguments != ["cpu"]
    if on_gpu and not _C.cuda_available():
        print(f"sanitized_steps: {_C.cuda_status()}", file=sys.stderr)
        return 2
    found: list[str] = []
    for rule in RULES:
        for way in WAYS:
            found += differences(_C, rule, way, on_gpu)
    for line in found[:20]:
        print(f"differs: {line}")
    tensors = len(WAYS) * len(RULES) * len(list(all_cases()))
    print(f"{tensors} tensors stepped, {len(found)} results differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
