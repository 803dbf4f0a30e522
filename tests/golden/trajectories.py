"""The golden trajectories: a few steps of small tensors, with every byte of state after each."""

import dataclasses
from itertools import product

import binary as fp
from formulas import mix
from reference import Hyper, Tensor

ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

RULES = {
    "adamw": Hyper("adamw", lr=1e-2, weight_decay=0.1, **ADAM),
    "adam": Hyper("adam", lr=3e-3, weight_decay=0.01, **ADAM),
    "sgd": Hyper("sgd", lr=0.05, weight_decay=0.01, momentum=0.9),
    "sgdw": Hyper("sgdw", lr=0.05, weight_decay=0.02, momentum=0.95, dampening=0.1),
    "lion": Hyper("lion", lr=1e-3, weight_decay=0.3, beta1=0.9, beta2=0.99),
}

VARIANTS = {
    "adamw_amsgrad": dataclasses.replace(RULES["adamw"], amsgrad=True, beta2=0.9),
    "adamw_decoupled_lr": dataclasses.replace(RULES["adamw"], initial_lr=3e-2),
    "adamw_maximize": dataclasses.replace(RULES["adamw"], gamma=-1.0, weight_decay=0.0),
    "adamw_no_eps": dataclasses.replace(RULES["adamw"], eps=0.0, beta1=0.0),
    "adamw_half": dataclasses.replace(RULES["adamw"], beta2=0.5, eps=1e-3),
    "adam_amsgrad": dataclasses.replace(RULES["adam"], amsgrad=True, beta2=0.95),
    "adam_plain": dataclasses.replace(RULES["adam"], weight_decay=0.0),
    "sgd_plain": Hyper("sgd", lr=0.1),
    "sgd_decay": Hyper("sgd", lr=0.1, weight_decay=0.1),
    "sgd_nesterov": dataclasses.replace(RULES["sgd"], nesterov=True, weight_decay=0.0),
    "sgd_dampening": dataclasses.replace(RULES["sgd"], dampening=0.5, gamma=-1.0),
    "sgdw_nesterov": dataclasses.replace(
        RULES["sgdw"], nesterov=True, dampening=0.0, initial_lr=0.1
    ),
    "sgdw_plain": Hyper("sgdw", lr=0.1, weight_decay=0.1),
    "lion_plain": dataclasses.replace(RULES["lion"], weight_decay=0.0),
    "lion_decoupled_lr": dataclasses.replace(RULES["lion"], initial_lr=4e-3, gamma=-1.0),
    "adam_scaled": dataclasses.replace(RULES["adam"], gradient_scale=65536.0),
    "sgdw_scaled": dataclasses.replace(RULES["sgdw"], gradient_scale=3.0, gamma=-1.0),
}

FORMATS = [("bf16", 16), ("bf16", 24), ("bf16", 32), ("fp16", 16), ("fp16", 24), ("fp16", 32)]
FORMATS.append(("fp32", 32))


class Numbers:
    """Deterministic test data that depends on no library's generator."""

    def __init__(self, seed: int) -> None:
        self.state, self.count = mix(seed), 0

    def word(self) -> int:
        self.count += 1
        return mix(mix(self.count) ^ self.state)

    def float_between(self, low: int, high: int) -> int:
        """A float of either sign, its magnitude log-uniform in [2^low, 2^high]."""
        bottom, top = fp.power_of_two(low), fp.power_of_two(high)
        return bottom + self.word() % (top - bottom + 1) | self.word() & fp.SIGN

    def image(self, dtype: str, low: int, high: int) -> int:
        """The same, cut to a dtype (towards zero)."""
        x = self.float_between(low, high)
        if dtype == "fp32":
            return x
        if dtype == "bf16":
            return x >> 16
        magnitude = max((x & 0x7FFFFFFF) - (112 << 23), 0) >> 13
        return min(magnitude, 0x7BFF) | x >> 16 & 0x8000


def to_float(image: int, dtype: str) -> int:
    if dtype == "fp32":
        return image
    return fp.bf16_to_float(image) if dtype == "bf16" else fp.fp16_to_float(image)


def words(values: list[int], digits: int) -> str:
    return "".join(f"{v & (1 << 4 * digits) - 1:0{digits}x}" for v in values)


INFINITY = {"bf16": 0x7F80, "fp16": 0x7C00, "fp32": fp.INF}
QUIET_NAN = {"bf16": 0x7FC0, "fp16": 0x7E00, "fp32": fp.NAN}


def state(tensor: Tensor) -> dict:
    digits = 8 if tensor.dtype == "fp32" else 4
    result = {"weight": words(tensor.weight, digits)}
    if tensor.dtype != "fp32" and tensor.bits != 16:
        result["correction"] = words(tensor.correction, 2 if tensor.bits == 24 else 4)
    for moment, codes in tensor.codes.items():
        result[moment] = words(codes, 8 if tensor.codec == "none" else 2)
        if tensor.codec != "none":
            result[f"{moment}_scale"] = words(tensor.scales[moment], 8)
    return result


def hyper_json(hyper: Hyper) -> dict:
    """The arguments that are not at their defaults."""
    defaults = {f.name: f.default for f in dataclasses.fields(Hyper)}
    return {k: v for k, v in dataclasses.asdict(hyper).items() if v != defaults[k]}


def trajectory(
    name: str,
    hyper: Hyper,
    codec: str,
    dtype: str,
    bits: int,
    *,
    shape: tuple[int, int],
    steps: int,
    gradient_dtype: str | None = None,
    stochastic: bool = False,
    first_row: int = 0,
    span: tuple[int, int] = (-20, -2),
    events: dict[int, dict[int, str]] | None = None,
) -> dict:
    """`events`: step (0: the weights at the start) to {element: "inf", "-inf", "nan" or "zero"}."""
    numbers = Numbers(sum(ord(c) * 31**i for i, c in enumerate(name)) & 0xFFFFFFFF)
    count = shape[0] * shape[1]
    gradient_dtype = gradient_dtype or dtype

    def place(images: list[int], dtype: str, step: int) -> None:
        special = {"inf": INFINITY[dtype], "nan": QUIET_NAN[dtype], "zero": 0}
        special["-inf"] = INFINITY[dtype] | (fp.SIGN if dtype == "fp32" else 0x8000)
        for element, kind in (events or {}).get(step, {}).items():
            images[element] = special[kind]

    weights = [numbers.image(dtype, -12, 2) for _ in range(count)]
    place(weights, dtype, 0)
    seed, key = numbers.word() << 32 | numbers.word(), numbers.word() << 32 | numbers.word()
    tensor = Tensor(
        *shape, dtype, bits, codec, hyper, list(weights), seed, key, stochastic, first_row=first_row
    )
    record = {
        "name": name,
        "hyper": hyper_json(hyper),
        "codec": codec,
        "weight_dtype": dtype,
        "bits": bits,
        "gradient_dtype": gradient_dtype,
        "rows": shape[0],
        "row_length": shape[1],
        "first_row": first_row,
        "seed": f"{seed:016x}",
        "key": f"{key:016x}",
        "stochastic": stochastic,
        "fresh": state(tensor),
        "gradients": [],
        "states": [],
    }
    for step in range(1, steps + 1):
        gradient = [numbers.image(gradient_dtype, *span) for _ in range(count)]
        place(gradient, gradient_dtype, step)
        tensor.take_step([to_float(g, gradient_dtype) for g in gradient])
        record["gradients"].append(words(gradient, 8 if gradient_dtype == "fp32" else 4))
        record["states"].append(state(tensor))
    return record


def covering() -> list[dict]:
    """Every rule with every codec and weight format, on very small tensors."""
    shapes = [(2, 5), (1, 9), (3, 4)]
    result = []
    for i, ((rule, hyper), codec, (dtype, bits)) in enumerate(
        product(RULES.items(), ("root", "softsign", "none"), FORMATS)
    ):
        shape = [(1, 5), (4, 3), (2, 5)][i % 3] if codec == "none" else shapes[i % 3]
        gradients = {"bf16": ["bf16", "fp32"], "fp16": ["fp16", "fp32"], "fp32": ["fp32", "bf16"]}
        result.append(
            trajectory(
                f"{rule}/{codec}/{dtype}-{bits}",
                hyper,
                codec,
                dtype,
                bits,
                shape=shape,
                steps=3,
                gradient_dtype=gradients[dtype][i % 5 == 0],
                stochastic=i % 2 == 1,
            )
        )
    return result


def variants() -> list[dict]:
    """The other arguments of the rules, with the codecs and formats in turn."""
    result = []
    for i, (name, hyper) in enumerate(VARIANTS.items()):
        for j, codec in enumerate(("root", "softsign", "none")):
            if not hyper.moments() and codec != "none":
                continue
            dtype, bits = FORMATS[(3 * i + 2 * j) % 7]
            options = {"shape": (3, 5), "steps": 4, "stochastic": (i + j) % 3 == 0}
            result.append(
                trajectory(f"{name}/{codec}/{dtype}-{bits}", hyper, codec, dtype, bits, **options)
            )
    return result


def shapes() -> list[dict]:
    """Whole groups, tails, shards, extreme magnitudes and non-finite elements."""
    adamw, amsgrad = RULES["adamw"], VARIANTS["adamw_amsgrad"]
    sgd, lion = RULES["sgd"], RULES["lion"]
    far = (1 << 28) // 2 - 1  # the last group whose quads fit 32 bits is within this shard
    marks = {
        0: {3: "inf", 4: "nan"},
        1: {0: "nan", 1: "inf", 2: "-inf", 70: "zero"},
        2: {69: "inf", 71: "nan"},
        4: {64: "-inf", 1: "zero"},
    }
    huge, tiny, wide = (60, 127), (-149, -100), (-149, 127)
    events = {"events": marks}
    random = {"stochastic": True}
    table = [
        ("whole groups", adamw, "root", "bf16", 24, (2, 64), random),
        ("tail", adamw, "root", "bf16", 32, (3, 70), {"steps": 4}),
        ("tail", amsgrad, "root", "fp16", 24, (3, 70), random),
        ("tail", adamw, "softsign", "fp32", 32, (2, 67), {}),
        ("long row", lion, "root", "bf16", 24, (1, 130), random),
        ("long row", sgd, "root", "fp16", 32, (1, 130), {}),
        ("shard", adamw, "root", "bf16", 16, (3, 68), {"first_row": far, **random}),
        ("shard", sgd, "softsign", "bf16", 24, (2, 5), {"first_row": 7, **random}),
        ("non-finite", amsgrad, "root", "bf16", 24, (2, 70), {"steps": 5, **events}),
        ("non-finite", amsgrad, "softsign", "bf16", 32, (2, 70), events),
        ("non-finite", amsgrad, "none", "fp16", 24, (2, 36), events),
        ("non-finite", sgd, "root", "fp16", 16, (2, 70), {**events, **random}),
        ("non-finite", lion, "root", "fp32", 32, (2, 36), events),
        ("non-finite", lion, "softsign", "fp16", 32, (2, 36), events),
        ("huge", amsgrad, "root", "fp32", 32, (2, 33), {"span": huge}),
        ("huge", adamw, "softsign", "bf16", 24, (2, 33), {"span": huge}),
        ("huge", sgd, "softsign", "bf16", 32, (2, 33), {"span": huge}),
        ("tiny", adamw, "root", "fp32", 32, (2, 33), {"span": tiny}),
        ("tiny", adamw, "softsign", "fp32", 32, (2, 33), {"span": tiny}),
        ("tiny", lion, "none", "fp32", 32, (2, 33), {"span": tiny}),
        ("tiny", sgd, "root", "bf16", 32, (2, 33), {"span": tiny}),
        ("wide", adamw, "root", "bf16", 24, (1, 65), {"span": wide}),
        ("wide", adamw, "none", "fp32", 32, (1, 65), {"span": wide}),
        ("wide", lion, "root", "bf16", 24, (1, 65), {"span": wide}),
    ]
    result = []
    for name, hyper, codec, dtype, bits, shape, options in table:
        full_name = f"{name}/{hyper.rule}/{codec}/{dtype}-{bits}"
        arguments = {"shape": shape, "steps": 3, **options}
        result.append(trajectory(full_name, hyper, codec, dtype, bits, **arguments))
    return result


def trajectories() -> dict[str, object]:
    return {
        "steps_covering": covering(),
        "steps_variants": variants(),
        "steps_shapes": shapes(),
    }
