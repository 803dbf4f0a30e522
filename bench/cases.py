"""What is timed: models, contenders, and the targets that the results are held against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from bench import shapes
from bench.contenders import CONTENDERS
from bench.measure import Metric

_LARGE: Final[tuple[Metric, ...]] = ("device",)
_SMALL: Final[tuple[Metric, ...]] = ("wall", "wall_sync", "device")
Kind = Literal["ms", "of_copy", "ratio", "first"]


@dataclass(frozen=True)
class Target:
    """What one of our contenders has to reach in its case.

    kind: ``ms``: median of the case's first metric; ``of_copy``: share of the copy's bandwidth;
    ``ratio``: time against another contender's; ``first``: first step against second.
    """

    contender: str
    kind: Kind
    limit: float
    against: str = ""
    gpu: str = ""  # part of the name of the GPU that it holds for; any if empty

    @property
    def text(self) -> str:
        """The target for people."""
        if self.kind == "ms":
            return f"<= {self.limit:g} ms"
        if self.kind == "of_copy":
            return f">= {100 * self.limit:g} % of copy"
        if self.kind == "ratio":
            times = "" if self.limit == 1 else f"{self.limit:g}x "
            return f"<= {times}{CONTENDERS[self.against].label}"
        return f"first step <= {self.limit:g}x second"

    def met(self, value: float) -> bool:
        """Whether a value reaches it."""
        return value >= self.limit if self.kind == "of_copy" else value <= self.limit


@dataclass(frozen=True)
class Case:
    """One model and the optimizers that step it in turn."""

    name: str
    title: str
    shapes: shapes.Shapes
    contenders: tuple[str, ...]
    metrics: tuple[Metric, ...]  # the first one is the one that counts
    targets: tuple[Target, ...] = field(default=())

    def quick(self) -> Case:
        """The same with tensors that take no time."""
        return replace(self, title=f"{self.title}, shrunk", shapes=shapes.shrunk(self.shapes))


_TORCH_GPU: Final = ("torch-fused-fp32", "torch-fused-bf16")
_TORCH_CPU: Final = (
    "torch-fused-fp32",
    "torch-fused-bf16",
    "torch-foreach-fp32",
    "torch-foreach-bf16",
)
_TORCHAO: Final = ("torchao-adamw8", "torchao-adamwfp8")

CPU_CASES: Final = (
    Case(
        "2^26",
        "AdamW, one tensor of 2^26 parameters",
        shapes.one_tensor(26),
        ("adamw", *_TORCH_CPU),
        ("wall",),
    ),
    Case("gpt2", "AdamW, GPT-2 124M", shapes.gpt2(), ("adamw", *_TORCH_CPU), ("wall",)),
    Case(
        "small",
        "AdamW, 320 tensors of 64 … 2e6 elements",
        shapes.many_sizes(),
        ("adamw", *_TORCH_CPU),
        ("wall",),
    ),
    Case(
        "variants",
        "Other rules and ways of keeping state, one tensor of 2^26 parameters",
        shapes.one_tensor(26),
        (
            "adamw",
            "adamw-nearest",
            "adamw-32",
            "adamw-softsign",
            "adamw-none",
            "lion",
            "sgd",
            "torch-sgd-fp32",
        ),
        ("wall",),
    ),
)

CUDA_CASES: Final = (
    Case(
        "adamw-2^30",
        "AdamW, one tensor of 2^30 parameters",
        shapes.one_tensor(30),
        ("adamw", *_TORCH_GPU, "official-adamw", "bnb-adamw8"),
        _LARGE,
        (
            Target("adamw", "ms", 3.3, gpu="H200"),
            Target("adamw", "of_copy", 0.94),
            Target("adamw", "first", 2),
        ),
    ),
    Case(
        "llama",
        "AdamW, 8 layers of Llama 3.1 8B and embeddings",
        shapes.llama(),
        ("adamw", *_TORCH_GPU, "official-adamw", "bnb-adamw8"),
        _LARGE,
        (Target("adamw", "ms", 8.7, gpu="H200"),),
    ),
    Case(
        "gpt2",
        "AdamW, GPT-2 124M",
        shapes.gpt2(),
        ("adamw", *_TORCH_GPU, "official-adamw", "bnb-adamw8", *_TORCHAO),
        _SMALL,
        (Target("adamw", "ms", 0.45, gpu="H200"),),
    ),
    Case(
        "resnet50",
        "AdamW, ResNet-50",
        shapes.resnet50(),
        ("adamw", *_TORCH_GPU, "official-adamw", "bnb-adamw8"),
        _SMALL,
        (Target("adamw", "ms", 0.2, gpu="H200"),),
    ),
    Case(
        "small",
        "AdamW, 320 tensors of 64 … 2e6 elements",
        shapes.many_sizes(),
        ("adamw", *_TORCH_GPU),
        _SMALL,
        (Target("adamw", "ratio", 1, against="torch-fused-fp32"),),
    ),
    Case(
        "lion-2^30",
        "Lion, one tensor of 2^30 parameters",
        shapes.one_tensor(30),
        ("lion", *_TORCH_GPU, "official-lion", "bnb-lion8"),
        _LARGE,
        (Target("lion", "ms", 2.75, gpu="H200"),),
    ),
    Case(
        "sgd-2^30",
        "SGD with momentum, one tensor of 2^30 parameters",
        shapes.one_tensor(30),
        ("sgd", "torch-sgd-fp32", "torch-sgd-bf16", "official-sgd"),
        _LARGE,
        (Target("sgd", "ms", 2.75, gpu="H200"),),
    ),
    Case(
        "variants",
        "AdamW, ways of keeping state, one tensor of 2^30 parameters",
        shapes.one_tensor(30),
        ("adamw", "adamw-nearest", "adamw-32", "adamw-softsign", "adamw-none"),
        _LARGE,
    ),
    Case(
        "adamw-2^28",
        "AdamW, one tensor of 2^28 parameters",
        shapes.one_tensor(28),
        ("adamw", *_TORCH_GPU, "official-adamw", "bnb-adamw8", *_TORCHAO),
        _LARGE,
    ),
    Case(
        "shapes",
        "AdamW, 300 tensors of 300 shapes",
        shapes.distinct(),
        ("adamw", *_TORCH_GPU),  # the official one would compile for minutes
        _SMALL,
    ),
)


def select(cases: Iterable[Case], names: str) -> list[Case]:
    """Those of the cases that a comma-separated list names; all if it is empty.

    Raises:
        ValueError: a name is not known.
    """
    known = {case.name: case for case in cases}
    wanted = [name for name in names.split(",") if name] or list(known)
    for name in wanted:
        if name not in known:
            raise ValueError(f"no case '{name}'; there are {', '.join(known)}")
    return [known[name] for name in wanted]
