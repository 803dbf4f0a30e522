"""Writes the golden vectors beside this file, or with --check compares them with what is there.

A column of a table is one string of hexadecimal words of fixed width, most significant digit
first: 8 digits for the image of a float, 4 for a 16-bit weight, 2 for a byte. Signed numbers are
in two's complement. The trajectories are made in trajectories.py.
"""

import json
import sys
from pathlib import Path

import binary as fp
import formulas as fm
from reference import Hyper, Scalars
from trajectories import Numbers, hyper_json, trajectories, words

HERE = Path(__file__).parent


def random_stream() -> dict:
    numbers = Numbers(1)
    inputs = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF] + [numbers.word() for _ in range(26)]
    seeds = []
    for seed, key, step in [
        (0, 0, 1),
        (1, 0, 1),
        (0, 1, 1),
        (1 << 32, 3, 7),
        (0x0123456789ABCDEF, 0xFEDCBA9876543210, 100000),
        ((1 << 64) - 1, (1 << 64) - 1, (1 << 40) + 5),
    ]:
        streams = [fm.stream_seed(seed, key, step, p) for p in (1, 2, 3, 4)]
        row = {"seed": f"{seed:016x}", "key": f"{key:016x}", "step": f"{step:016x}"}
        seeds.append({**row, "streams": words(streams, 8)})
    quads = []
    for stream in (0, 0x9E3779B9, 0xFFFFFFFF):
        for group in (0, 1, 1000, (1 << 28) - 1, 1 << 28, (1 << 40) + 3):
            row = {"stream": words([stream], 8), "group": f"{group:016x}"}
            bytes_ = [fm.random_byte(stream, group, e) for e in range(64)]
            quads.append({**row, "bytes": words(bytes_, 2)})
    mixed = {"input": words(inputs, 8), "output": words([fm.mix(x) for x in inputs], 8)}
    return {"mix": mixed, "stream_seeds": seeds, "quads": quads}


def interesting_floats() -> list[int]:
    """Magnitudes: zero, subnormals, the edges and ties of many binades, infinity, NaN."""
    numbers = Numbers(2)
    result = [0, 1, 2, 3, 0x7FFFFF, 0x7F7FFFFF, fp.INF, 0x7F800001, fp.NAN, 0x7FFFFFFF]
    # Around one half and one unit of the 16-bit weights and their corrections.
    for e in (0, 1, 2, 55, 87, 88, 101, 102, 103, 111, 112, 113, 126, 127, 141, 142, 143, 254):
        for low in (0, 0x7F, 0x80, 0x1000, 0x7FFF, 0x8000, 0x7FF000, 0x7FFF80, 0x7FFFFF):
            result.append(e << 23 | low)
    for unit in (0x800, 0x1000, 0x2000, 0x8000, 0x18000):
        result += [(127 << 23) + unit + low for low in (-17, -16, -15, -1, 0, 1, 15, 16, 17)]
    # fp16's subnormals, its smallest normal number and its overflow.
    for x in (0x33000000, 0x33800000, 0x387FC000, 0x387FE000, 0x38800000, 0x477FE000, 0x477FF000):
        result += [x - 1, x, x + 1]
    for _ in range(48):
        result.append(numbers.float_between(-149, 127) & 0x7FFFFFFF)
    for _ in range(48):
        result.append(numbers.float_between(-26, 16) & 0x7FFFFFFF)
    return sorted(set(result))


def splits() -> list[dict]:
    numbers = Numbers(3)
    magnitudes = interesting_floats()
    tables = []
    for dtype in ("bf16", "fp16"):
        for bits in (16, 24, 32):
            d = fm.given_up_bits(dtype, bits)
            for stochastic in (False, True):
                if stochastic and d == 0:
                    continue
                signs = (0,) if stochastic else (0, fp.SIGN)
                thetas = [s | x for s in signs for x in magnitudes]
                b3 = [numbers.word() & 0xFF for _ in thetas]
                b4 = [numbers.word() & 0xFF for _ in thetas]
                # The extremes of the random bits too.
                b3[::5], b4[::5] = [0xFF] * len(b3[::5]), [0xFF] * len(b4[::5])
                b3[1::5], b4[1::5] = [0] * len(b3[1::5]), [0] * len(b4[1::5])
                pairs = []
                for theta, x, y in zip(thetas, b3, b4, strict=True):
                    random = fm.stochastic_bits(d, x, y) if stochastic else None
                    pairs.append(fm.split(theta, dtype, bits, random))
                table = {"weight_dtype": dtype, "bits": bits, "stochastic": stochastic}
                table["theta"] = words(thetas, 8)
                if stochastic:
                    table["b3"], table["b4"] = words(b3, 2), words(b4, 2)
                table["weight"] = words([w for w, _ in pairs], 4)
                table["correction"] = words([c for _, c in pairs], 4)
                tables.append(table)
    return tables


def joins() -> list[dict]:
    numbers = Numbers(4)
    tables = []
    for dtype, one, infinity in (("bf16", 0x3F80, 0x7F80), ("fp16", 0x3C00, 0x7C00)):
        for bits, width in ((16, 0), (24, 8), (32, 16 if dtype == "bf16" else 13)):
            edges = [0, 1, 2, one - 1, one, one + 1, infinity - 1]
            edges += [0x3FF, 0x400, 0x401, 0x7F, 0x80, 0x81]
            rows = []
            for w in (s | w for s in (0, 0x8000) for w in edges):
                half = (1 << width) >> 1
                for c in sorted({0, -half, -1, 1, half - 1}) if width else [0]:
                    rows.append((w, c))
            for _ in range(64):
                c = (numbers.word() % (1 << width)) - (1 << width >> 1) if width else 0
                rows.append((numbers.word() % infinity | numbers.word() & 0x8000, c))
            # What a split leaves of an infinity.
            rows += [(infinity, 0), (infinity | 0x8000, 0)]
            tables.append(
                {
                    "weight_dtype": dtype,
                    "bits": bits,
                    "weight": words([w for w, _ in rows], 4),
                    "correction": words([c for _, c in rows], 4),
                    "theta": words([fm.join(w, c, dtype, bits) for w, c in rows], 8),
                }
            )
    return tables


def scales(kind: str, codec: str) -> list[int]:
    numbers = Numbers(5)
    floor = {"first": fm.FIRST_FLOOR, "second": fm.SECOND_FLOOR}[kind]
    mask = ~3 if codec == "root" and kind == "second" else ~1
    top = 0x7F7FFFFF
    if codec == "softsign" and kind == "second":
        floor, top = fm.ROOT_FLOOR, fp.sqrt(0x7F7FFFFF)
    low, high = (floor >> 23) - 127, (top >> 23) - 128
    some = [numbers.float_between(low, high) & 0x7FFFFFFF for _ in range(4)]
    one = fm.ONE
    return [s & mask for s in (floor, fp.power_of_two(-30), one - 4, top, *some)]


def decodes() -> list[dict]:
    tables = []
    for codec in ("root", "softsign"):
        for kind in ("first", "second"):
            decode = getattr(fm, f"decode_{kind}_{codec}")
            for i, scale in enumerate(scales(kind, codec)):
                flag = i % 3 == 1
                codes = list(range(-127, 128)) if kind == "first" else list(range(1, 256))
                if codec == "root" and kind == "second":
                    codes = [c for c in codes if fm.second_root_has_meaning(scale, c)]
                if flag:
                    codes.append(-128 if kind == "first" else 0)
                table = {"codec": codec, "moment": kind, "scale": words([scale | flag], 8)}
                table["codes"] = words(codes, 2)
                table["values"] = words([decode(scale | flag, c) for c in codes], 8)
                tables.append(table)
    return tables


def groups(kind: str) -> list[list[int]]:
    numbers = Numbers(6)
    mask = 0xFFFFFFFF if kind == "first" else 0x7FFFFFFF
    low = -140 if kind == "first" else -100
    result = []
    for length, bottom, top in [
        (64, -20, -10), (64, -80, -60), (64, low, 127), (64, 100, 127), (64, -2, 0),
        (64, -100, -84), (17, -40, -5), (3, -70, -68), (2, -10, 10), (1, -31, -30), (1, 126, 127),
    ]:  # fmt: skip
        result.append([numbers.float_between(bottom, top) & mask for _ in range(length)])
    result.append([0] * 5 + [fm.ONE])
    result.append([0] * 64)
    result.append([0x7F7FFFFF, 1, 0x800000, 0x7FFFFF, 0])
    # Neighbours of the group's maximum, and the marks of section 6.
    result.append([(127 << 23) + low_bits for low_bits in range(8)])
    for marks in ([fp.NAN], [fp.INF], [fp.INF, fp.NAN, 0x7F800001]):
        group = [numbers.float_between(-20, -10) & mask for _ in range(12)]
        group[2 : 2 + len(marks)] = marks
        result.append(group)
    result.append([fp.NAN] * 4)
    result.append([fp.INF])
    if kind == "first":
        result.append([fp.negate(fp.INF), fp.SIGN, fm.ONE, fp.negate(fm.ONE)])
    else:
        result.append([fp.SIGN, fp.negate(fm.ONE), fp.power_of_two(-101), fp.power_of_two(-99)])
    return result


def encodes() -> list[dict]:
    numbers = Numbers(7)
    tables = []

    def add(codec: str, kind: str, group: list[int], encoded: tuple, random: list[int]) -> None:
        table = {"codec": codec, "moment": kind, "values": words(group, 8)}
        if random:
            table["random"] = words(random, 2)
        scale, codes = encoded
        tables.append({**table, "scale": words([scale], 8), "codes": words(codes, 2)})

    for group in groups("first"):
        add("root", "first", group, fm.encode_first_root(group), [])
        add("softsign", "first", group, fm.encode_first_softsign(group), [])
        row = {"codec": "none", "moment": "first", "values": words(group, 8)}
        tables.append({**row, "codes": words([fm.store_first_plain(m) for m in group], 8)})
    for group in groups("second"):
        add("root", "second", group, fm.encode_second_root(group, None), [])
        add("softsign", "second", group, fm.encode_second_softsign(group, plain=True), [])
        if min(group) >= fm.SECOND_FLOOR and fp.SIGN not in group:
            random = [numbers.word() & 0xFF for _ in group]
            add("root", "second", group, fm.encode_second_root(group, random), random)
    return tables


def host_scalars() -> list[dict]:
    rows = []
    adam = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    hypers = [
        Hyper("adamw", lr=3e-4, weight_decay=0.1, **adam),
        Hyper("adam", lr=1e-3, weight_decay=1e-4, beta1=0.95, beta2=0.99999, eps=1e-30),
        Hyper("adamw", lr=0.7, weight_decay=0.3, initial_lr=0.9, beta1=0.0, beta2=0.0),
        Hyper("adamw", lr=1e-5, gamma=-1.0, beta1=1 - 2.0**-53, beta2=1 - 2.0**-53, eps=1e29),
        Hyper("sgd", lr=0.1, weight_decay=1e-50, momentum=0.9, dampening=0.1),
        Hyper("sgdw", lr=0.1, weight_decay=1e-4, momentum=1.5, dampening=-0.3),
        Hyper("lion", lr=1e-4, weight_decay=0.3, initial_lr=3e-4, beta1=0.9, beta2=0.99),
    ]
    for hyper in hypers:
        for step in (1, 2, 3, 10, 999, 12345, (1 << 24) - 1, 1 << 24, (1 << 33) + 77):
            scalars = Scalars(hyper, step)
            values = {"gradient_multiplier": scalars.gamma, "coupled_decay": scalars.coupled}
            values["decay"] = scalars.decay
            if hyper.rule in ("sgd", "sgdw"):
                values.update(step_size=scalars.lr, first_decay=scalars.momentum)
                values["first_rate"] = scalars.tau
            else:
                values.update(first_decay=scalars.beta1, first_rate=scalars.rest1)
                values.update(second_decay=scalars.beta2, second_rate=scalars.rest2)
                values["step_size"] = scalars.lr if hyper.rule == "lion" else scalars.alpha
            if hyper.rule in ("adam", "adamw"):
                values.update(inverse_sqrt_bias_correction=scalars.kappa, eps=scalars.eps)
            images = {name: words([image], 8) for name, image in values.items()}
            rows.append({"hyper": hyper_json(hyper), "step": step, "scalars": images})
    return rows


def render(content: object) -> str:
    """One line for each row of a table."""

    def line(row: object) -> str:
        return json.dumps(row, separators=(",", ":"))

    if isinstance(content, list):
        return "[\n" + ",\n".join(line(row) for row in content) + "\n]\n"
    assert isinstance(content, dict)
    rows = (
        f"{line(key)}:" + (render(v).rstrip() if isinstance(v, list) else line(v))
        for key, v in content.items()
    )
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main() -> int:
    files: dict[str, object] = {
        "random_stream": random_stream(),
        "scalars": host_scalars(),
        "split": splits(),
        "join": joins(),
        "decode": decodes(),
        "encode": encodes(),
    }
    files.update(trajectories())
    if sys.argv[1:] == ["--check"]:
        differing = []
        for name, content in files.items():
            path = HERE / f"{name}.json"
            if not path.exists() or path.read_text(encoding="utf-8") != render(content):
                differing.append(path.name)
        extra = {p.stem for p in HERE.glob("*.json")} - set(files)
        for name in differing:
            print(f"tests/golden/{name} differs from what reference.py makes")
        for name in sorted(extra):
            print(f"tests/golden/{name}.json is made by nothing")
        return 1 if differing or extra else 0
    if sys.argv[1:]:
        print("usage: generate.py [--check]")
        return 2
    for name, content in files.items():
        (HERE / f"{name}.json").write_text(render(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
