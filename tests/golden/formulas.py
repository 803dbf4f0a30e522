"""Sections 3 to 6 of docs/format.md: random stream, weight split, moment codecs.

Written from the document alone, like reference.py, which says more. Floats are 32-bit images.
"""

import binary as fp
from binary import MASK32, NAN, SIGN, from_int, is_finite, is_nan, mul, power_of_two

ONE = from_int(1)
FIRST_FLOOR = power_of_two(-72)
SECOND_FLOOR = power_of_two(-100)
ROOT_FLOOR = power_of_two(-50)
GROUP = 64


# 3. Random stream.


def mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK32
    x ^= x >> 15
    x = x * 0x846CA68B & MASK32
    return x ^ x >> 16


def stream_seed(seed: int, key: int, step: int, purpose: int) -> int:
    h = purpose
    for w in (seed, seed >> 32, key, key >> 32, step, step >> 32):
        h = mix(((h ^ w & MASK32) + 0x9E3779B9) & MASK32)
    return h


def quad_word(stream: int, group: int, quad: int) -> int:
    c = 16 * group + quad
    return mix(c & MASK32 ^ stream ^ mix(c >> 32 & MASK32))


def random_byte(stream: int, group: int, element: int) -> int:
    return quad_word(stream, group, element // 4) >> 8 * (element % 4) & 0xFF


# 4. Weight split.


def given_up_bits(dtype: str, bits: int) -> int:
    return {"bf16": {16: 16, 24: 8, 32: 0}, "fp16": {16: 13, 24: 5, 32: 0}}[dtype][bits]


def stochastic_bits(d: int, b3: int, b4: int) -> int:
    return (b3 << 8 | b4) >> (16 - d)


def fp16_image(theta: int) -> int:
    a = fp.magnitude(theta)
    if a >= power_of_two(-14):
        return min(a - (112 << 23), 31 << 23)
    return fp.add(a, power_of_two(-14)) - (113 << 23)


def split(theta: int, dtype: str, bits: int, random: int | None = None) -> tuple[int, int]:
    """The weight's image and the signed correction. `random`: the d bits of 4.4, None: nearest."""
    if dtype == "fp32":
        return (NAN if is_nan(theta) else theta), 0
    if is_nan(theta):
        return (0x7FC0 if dtype == "bf16" else 0x7E00), 0
    b = 16 if dtype == "bf16" else 13
    d = given_up_bits(dtype, bits)
    r = (1 << d >> 1) if random is None else random
    x = theta if dtype == "bf16" else fp16_image(theta)
    y = (x + r) & MASK32
    if d == b:
        weight, correction = y >> b, 0
    else:
        weight = ((y + (1 << b >> 1)) & MASK32) >> b
        correction = (y >> d) & ((1 << b - d) - 1)
        if correction >> (b - d - 1):
            correction -= 1 << b - d
    if dtype == "fp16":
        weight |= theta >> 16 & 0x8000
    return weight, correction


def join(weight: int, correction: int, dtype: str, bits: int) -> int:
    if dtype == "fp32":
        return weight
    d = given_up_bits(dtype, bits)
    if d == (16 if dtype == "bf16" else 13) or (weight & 0x7FFF == 0 and correction < 0):
        correction = 0
    if dtype == "bf16":
        return ((weight << 16) + (correction << d)) & MASK32
    y = (((weight & 0x7FFF) << 13) + (correction << d)) & MASK32
    if y >= 31 << 23:
        theta = 0x7F800000 | y & 0x7FFFFF
    elif y >= 1 << 23:
        theta = y + (112 << 23)
    else:
        theta = fp.sub(y + (113 << 23), power_of_two(-14))
    return theta | (weight & 0x8000) << 16


# 5 and 6. Moment codecs. A group is a list of images; an encoded group is (scale, codes).


def finite_maximum(images: list[int], floor: int) -> int:
    return max([floor, *(b for b in images if is_finite(b))])


def at_least_floor(v: int) -> int:
    """What a conversion makes of a second moment: at least 2^-100, also for a negative one."""
    if not is_finite(v):
        return v
    return SECOND_FLOOR if v & SIGN else max(v, SECOND_FLOOR)


def encode_first_root(group: list[int]) -> tuple[int, list[int]]:
    a = finite_maximum([fp.magnitude(m) for m in group], FIRST_FLOOR) & ~1
    c = from_int(127) - (a >> 1)
    codes = []
    for m in group:
        if is_finite(m):
            code = fp.rne((fp.magnitude(m) >> 1) + c)
            codes.append(-code if m & SIGN else code)
        else:
            codes.append(-128)
            a |= 1
    return a, codes


def decode_first_root(scale: int, code: int) -> int:
    if code == -128:
        return NAN
    if code == 0:
        return 0
    c = from_int(127) - ((scale & ~1) >> 1)
    return (from_int(abs(code)) - c) << 1 & MASK32 | (SIGN if code < 0 else 0)


def encode_second_root(group: list[int], random: list[int] | None) -> tuple[int, list[int]]:
    """`random`: the elements' bytes; None converts plain floats."""
    if random is None:
        random = [128] * len(group)
        group = [at_least_floor(v) for v in group]
    scale = finite_maximum(group, SECOND_FLOOR) & ~3
    c = from_int(255) - (scale >> 2)
    codes = []
    for v, u in zip(group, random, strict=True):
        if is_finite(v):
            y = max(ONE, (v >> 2) + c)
            codes.append(fp.rne(mul(from_int(256), y)) + u >> 8)
        else:
            codes.append(0)
            scale |= 1
    return scale, codes


def decode_second_root(scale: int, code: int) -> int:
    if code == 0:
        return fp.INF
    c = from_int(255) - ((scale & ~1) >> 2)
    return (from_int(code) - c) << 2 & MASK32


def second_root_has_meaning(scale: int, code: int) -> bool:
    """Whether the decoded value is a float that is not negative (5.1, last paragraph)."""
    if code == 0:
        return bool(scale & 1)
    return from_int(code) >= from_int(255) - ((scale & ~1) >> 2)


def encode_first_softsign(group: list[int]) -> tuple[int, list[int]]:
    a = finite_maximum([fp.magnitude(m) for m in group], FIRST_FLOOR) & ~1
    i = fp.div(ONE, a)
    codes = []
    for m in group:
        if is_finite(m):
            x = mul(m, i)
            y = mul(fp.add(x, x), fp.div(ONE, fp.add(ONE, fp.magnitude(x))))
            codes.append(fp.rne(mul(from_int(127), y)))
        else:
            codes.append(-128)
            a |= 1
    return a, codes


def decode_first_softsign(scale: int, code: int) -> int:
    if code == -128:
        return NAN
    y = mul(from_int(code), fp.div(ONE, from_int(127)))
    x = mul(y, fp.div(ONE, fp.sub(from_int(2), fp.magnitude(y))))
    return mul(x, scale & ~1)


def encode_second_softsign(group: list[int], plain: bool = False) -> tuple[int, list[int]]:
    if plain:
        group = [at_least_floor(v) for v in group]
    roots = [fp.sqrt(v) if is_finite(v) else v for v in group]
    scale = finite_maximum(roots, ROOT_FLOOR) & ~1
    i = fp.div(from_int(255), scale)
    codes = []
    for s in roots:
        if is_finite(s):
            codes.append(max(1, fp.rne(mul(s, i))))
        else:
            codes.append(0)
            scale |= 1
    return scale, codes


def decode_second_softsign(scale: int, code: int) -> int:
    if code == 0:
        return fp.INF
    s = scale & ~1
    if code != 255:
        s = mul(from_int(code), fp.div(s, from_int(255)))
    return mul(s, s)


def store_first_plain(m: int) -> int:
    if is_nan(m):
        return NAN
    return 0 if fp.magnitude(m) < SECOND_FLOOR else m


def store_second_plain(v: int) -> int:
    return NAN if is_nan(v) else v
