"""An independent reading of docs/format.md in exact rational arithmetic.

Written from the document alone; it shares no code with the library. Floats are 32-bit images
(binary.py). The numbers in the comments are sections of the document.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import binary as fp
from binary import MASK32, NAN, SIGN, fma, from_int, is_finite, is_nan, mul, negate, power_of_two

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


# 7 and 8. State and update rules.


def host(x: float | int) -> Fraction:
    return Fraction(x)


def to_float(x: Fraction) -> int:
    return fp.image(x)


@dataclass(frozen=True)
class Hyper:
    rule: str  # sgd, sgdw, adam, adamw, lion
    lr: float
    weight_decay: float = 0.0
    initial_lr: float | None = None  # set: fully decoupled decay
    gamma: float = 1.0  # with the sign of `maximize`
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    amsgrad: bool = False
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def coupled(self) -> bool:
        return self.rule in ("adam", "sgd")

    def moments(self) -> list[str]:
        if self.rule in ("adam", "adamw"):
            return ["first", "second"] + (["maximum"] if self.amsgrad else [])
        if self.rule == "lion":
            return ["first"]
        return ["first"] if self.momentum != 0 else []


@dataclass
class Tensor:
    rows: int
    row_length: int
    dtype: str
    bits: int
    codec: str  # root, softsign, none
    hyper: Hyper
    weight: list[int]
    seed: int = 0
    key: int = 0
    stochastic: bool = False
    step: int = 0
    first_row: int = 0  # of a shard in the whole tensor
    correction: list[int] = field(default_factory=list)
    codes: dict[str, list[int]] = field(default_factory=dict)  # images for the codec none
    scales: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.correction = [0] * len(self.weight)
        groups = self.rows * self.groups_per_row()
        for moment in self.hyper.moments():
            first = moment == "first"
            fresh_code = 0 if first or self.codec == "none" else 255
            self.codes[moment] = [fresh_code] * len(self.weight)
            if self.codec != "none":
                floor = SECOND_FLOOR if self.codec == "root" else ROOT_FLOOR
                self.scales[moment] = [FIRST_FLOOR if first else floor] * groups

    def groups_per_row(self) -> int:
        return -(-self.row_length // GROUP)

    def groups(self) -> list[tuple[int, int, slice]]:
        """(index here, index in the whole tensor, elements) of every group."""
        result = []
        per_row = self.groups_per_row()
        for r in range(self.rows):
            for k in range(per_row):
                begin = r * self.row_length + k * GROUP
                end = min(begin + GROUP, (r + 1) * self.row_length)
                here = r * per_row + k
                result.append((here, self.first_row * per_row + here, slice(begin, end)))
        return result

    def decode(self, moment: str, group: int, where: slice) -> list[int]:
        codes = self.codes[moment][where]
        if self.codec == "none":
            return codes
        kind = "first" if moment == "first" else "second"
        decode = globals()[f"decode_{kind}_{self.codec}"]
        scale = self.scales[moment][group]
        # Without the flag the marking codes have no meaning and do not occur.
        assert scale & 1 or (-128 if kind == "first" else 0) not in codes
        return [decode(scale, code) for code in codes]

    def encode(self, moment: str, group: int, index: int, where: slice, x: list[int]) -> None:
        if self.codec == "none":
            store = store_first_plain if moment == "first" else store_second_plain
            self.codes[moment][where] = [store(v) for v in x]
            return
        if moment == "first":
            encode = encode_first_root if self.codec == "root" else encode_first_softsign
            scale, codes = encode(x)
        elif self.codec == "root":
            stream = stream_seed(self.seed, self.key, self.step, 1 if moment == "second" else 2)
            u = [random_byte(stream, index, e) for e in range(len(x))]
            scale, codes = encode_second_root(x, u)
        else:
            scale, codes = encode_second_softsign(x)
        self.scales[moment][group] = scale
        self.codes[moment][where] = codes

    def take_step(self, gradient: list[int]) -> None:
        """One step; `gradient` as float images."""
        self.step += 1
        scalars = Scalars(self.hyper, self.step)
        for here, index, where in self.groups():
            moments = {m: self.decode(m, here, where) for m in self.hyper.moments()}
            weights = []
            for e, g in enumerate(gradient[where]):
                i = where.start + e
                w = join(self.weight[i], self.correction[i], self.dtype, self.bits)
                state = {m: moments[m][e] for m in moments}
                weights.append(scalars.update(w, g, state))
                for m in moments:
                    moments[m][e] = state[m]
            for m, x in moments.items():
                self.encode(m, here, index, where, x)
            self.store_weights(index, where, weights)

    def store_weights(self, index: int, where: slice, weights: list[int]) -> None:
        d = 0 if self.dtype == "fp32" else given_up_bits(self.dtype, self.bits)
        streams = [stream_seed(self.seed, self.key, self.step, p) for p in (3, 4)]
        for e, w in enumerate(weights):
            random = None
            if self.stochastic:
                random = stochastic_bits(d, *(random_byte(s, index, e) for s in streams))
            i = where.start + e
            self.weight[i], self.correction[i] = split(w, self.dtype, self.bits, random)


def power64(base: Fraction, exponent: int) -> Fraction:
    """8.1: the power in binary64, by squaring from the lowest bit on."""
    result = Fraction(1)
    while exponent:
        if exponent & 1:
            result = fp.round64(result * base)
        base = fp.round64(base * base)
        exponent >>= 1
    return result


class Scalars:
    """The host scalars of one tensor and step, and the rules (8) on one element."""

    def __init__(self, h: Hyper, t: int) -> None:
        self.hyper, self.first_step = h, t == 1
        r64 = fp.round64
        self.gamma = to_float(host(h.gamma))
        self.coupled = to_float(host(h.weight_decay)) if h.coupled() else 0
        decay = host(1)
        if not h.coupled() and h.weight_decay != 0:
            factor = host(h.lr)
            if h.initial_lr is not None:
                factor = r64(factor / host(h.initial_lr))
            decay = r64(1 - r64(factor * host(h.weight_decay)))
        self.decay = to_float(decay)
        self.lr = to_float(host(h.lr))
        self.eps = to_float(host(h.eps))
        beta1, beta2 = host(h.beta1), host(h.beta2)
        self.beta1, self.rest1 = to_float(beta1), to_float(r64(1 - beta1))
        self.beta2, self.rest2 = to_float(beta2), to_float(r64(1 - beta2))
        if h.rule in ("adam", "adamw"):
            correction1 = r64(1 - power64(beta1, t))
            correction2 = r64(1 - power64(beta2, t))
            self.alpha = to_float(r64(host(h.lr) / correction1))
            self.kappa = to_float(r64(1 / fp.sqrt64(correction2)))
        self.momentum = to_float(host(h.momentum))
        self.tau = to_float(host(1) if t == 1 else r64(1 - host(h.dampening)))

    def update(self, w: int, g: int, state: dict[str, int]) -> int:
        """The new master weight; `state` (moment: image) becomes the new moments."""
        g = mul(self.gamma, g)
        if not fp.is_zero(self.coupled):
            g = fma(self.coupled, w, g)
        if self.hyper.rule in ("adam", "adamw"):
            return self.adam(w, g, state)
        if self.hyper.rule == "lion":
            return self.lion(w, g, state)
        return self.sgd(w, g, state)

    def adam(self, w: int, g: int, state: dict[str, int]) -> int:
        m = fma(self.beta1, state["first"], mul(self.rest1, g))
        v = fma(self.beta2, state["second"], fma(mul(self.rest2, g), g, SECOND_FLOOR))
        state["first"], state["second"] = m, v
        n = v
        if self.hyper.amsgrad:
            x = state["maximum"]
            # Section 6 asks that a NaN is not hidden. Images of v >= 0 are ordered as the values.
            n = state["maximum"] = NAN if is_nan(x) or is_nan(v) else max(x, v)
        d = fma(fp.sqrt(n), self.kappa, self.eps)
        return fma(w, self.decay, negate(mul(mul(self.alpha, m), fp.div(ONE, d))))

    def sgd(self, w: int, g: int, state: dict[str, int]) -> int:
        direction = g
        if self.hyper.momentum != 0:
            b = fma(self.momentum, state["first"], mul(self.tau, g))
            state["first"] = b
            direction = fma(self.momentum, b, g) if self.hyper.nesterov else b
        return fma(w, self.decay, negate(mul(self.lr, direction)))

    def lion(self, w: int, g: int, state: dict[str, int]) -> int:
        m = state["first"]
        u = fma(self.beta1, m, mul(self.rest1, g))
        if is_nan(u):
            s = NAN
        elif fp.is_zero(u):
            s = 0
        else:
            s = self.lr | u & SIGN
        state["first"] = fma(self.beta2, m, mul(self.rest2, g))
        return fma(w, self.decay, negate(s))
