"""What an optimizer, its parameters and their gradients take in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

from . import _C
from ._options import Group, RuleKind
from ._sharding import local_of
from ._state import CORRECTION, MOMENTS, Layout, State, layout_of, naming, scale_of

_CODEC_NAMES: Final = {codec: codec.name.lower() for codec in _C.Codec}
# Bytes per parameter of plain training: weight, gradient and two moments in fp32 (or 16-bit copies
# of the first two beside an fp32 master weight), and all four in 16 bits.
_BASELINES: Final = (16, 8)


@dataclass(frozen=True)
class MemoryByKind:
    """Bytes by what they are for."""

    weights: int = 0
    gradients: int = 0
    weight_correction: int = 0
    first_moment: int = 0
    second_moment: int = 0
    maximum: int = 0  # amsgrad's
    scales: int = 0
    other: int = 0  # step counts, stream keys and whatever else is in the state

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def optimizer(self) -> int:
        """What the optimizer keeps: all but weights and gradients."""
        return self.total - self.weights - self.gradients

    def __add__(self, other: MemoryByKind) -> MemoryByKind:
        return MemoryByKind(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )


@dataclass(frozen=True)
class ParameterMemory:
    """One parameter."""

    name: str
    shape: tuple[int, ...]  # of what this process holds
    dtype: torch.dtype
    codec: str  # in effect: small vectors are kept as "none"
    master_weight_bits: int  # in effect: 32 for fp32 parameters
    memory: MemoryByKind

    @property
    def numel(self) -> int:
        """Its number of elements."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class MemoryReport:
    """Memory of all parameters of an optimizer; `str` of it is a table."""

    parameters: tuple[ParameterMemory, ...]

    @property
    def by_kind(self) -> MemoryByKind:
        """Sums over all parameters."""
        return sum((row.memory for row in self.parameters), MemoryByKind())

    @property
    def total(self) -> int:
        """All bytes."""
        return self.by_kind.total

    @property
    def numel(self) -> int:
        """Number of parameters, counted as elements."""
        return sum(row.numel for row in self.parameters)

    @property
    def bytes_per_parameter(self) -> float:
        """All bytes by the number of elements; 0 without elements."""
        return self.total / self.numel if self.numel else 0.0

    def saved_against(self, bytes_per_parameter: float) -> float:
        """The share that is saved against a baseline, 0.5 for half; 0 without elements."""
        return 1.0 - self.bytes_per_parameter / bytes_per_parameter if self.numel else 0.0

    def __str__(self) -> str:
        sums = self.by_kind
        kinds = [
            (field.name.replace("_", " "), getattr(sums, field.name)) for field in fields(sums)
        ]
        lines = [f"{'kind':<20}{'bytes':>18}{'per parameter':>16}"]
        lines += [self._line(name, size) for name, size in (*kinds, ("total", sums.total))]
        for baseline in _BASELINES:
            saved = 100 * self.saved_against(baseline)
            lines.append(f"saved against {baseline} bytes per parameter: {saved:.1f} %")
        lines.append(f"{'kept as':<32}{'tensors':>10}{'parameters':>16}{'bytes each':>12}")
        for title, rows in self._kept_as().items():
            numel = sum(row.numel for row in rows)
            size = sum(row.memory.total for row in rows)
            each = f"{size / numel:.3f}" if numel else "-"
            lines.append(f"{title:<32}{len(rows):>10,}{numel:>16,}{each:>12}")
        return "\n".join(lines)

    def _line(self, name: str, size: int) -> str:
        each = f"{size / self.numel:.3f}" if self.numel else "-"
        return f"{name:<20}{size:>18,}{each:>16}"

    def _kept_as(self) -> dict[str, list[ParameterMemory]]:
        kept: dict[str, list[ParameterMemory]] = {}
        for row in self.parameters:
            dtype = str(row.dtype).removeprefix("torch.")
            title = f"{dtype}, {row.master_weight_bits} bits, {row.codec}"
            kept.setdefault(title, []).append(row)
        return kept


def report(
    parameters: Iterable[tuple[Tensor, int, str]],
    groups: Sequence[Group],
    states: Mapping[Tensor, State],
    kind: RuleKind,
) -> MemoryReport:
    """The memory of all parameters of an optimizer.

    Args:
        parameters: each with the index of its group and its name.
        groups: the optimizer's parameter groups.
        states: its state.
        kind: its rule.
    """
    rows = []
    for param, group, name in parameters:
        state = states.get(param, {})
        layout = None
        if param.requires_grad or state:
            with naming(name):
                layout = layout_of(param, groups[group], kind)
        rows.append(_measure(name, param, layout, state))
    return MemoryReport(tuple(rows))


def _measure(name: str, param: Tensor, layout: Layout | None, state: State) -> ParameterMemory:
    """The memory of one parameter in this process, from its tensors.

    Args:
        name: for the report.
        param: the parameter.
        layout: how its state is kept; None if it is frozen and has none.
        state: its state.
    """
    moments = () if layout is None else layout.moments
    known = [CORRECTION, *moments, *map(scale_of, moments)]
    real_bits = 8 * param.element_size() // (2 if param.is_complex() else 1)
    return ParameterMemory(
        name=name,
        shape=tuple(local_of(param).shape),
        dtype=param.dtype,
        codec=_CODEC_NAMES[_C.Codec.NONE if layout is None else layout.codec],
        master_weight_bits=real_bits + (0 if layout is None else layout.correction_bits),
        memory=MemoryByKind(
            weights=_size([param]),
            gradients=_size([param.grad]),
            weight_correction=_size([state.get(CORRECTION)]),
            **{MOMENTS[moment].attribute: _size([state.get(moment)]) for moment in moments},
            scales=_size(state.get(scale_of(moment)) for moment in moments),
            other=_size(value for key, value in state.items() if key not in known),
        ),
    )


def _size(values: Iterable[object]) -> int:
    return sum(local_of(value).nbytes for value in values if isinstance(value, Tensor))
