"""An independent reading of docs/format.md in exact rational arithmetic.

Written from the document alone; it shares no code with the library. Floats are 32-bit images
(binary.py). The numbers in the comments are sections of the document; formulas.py has sections 3
to 6, this file the state and the update rules.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import binary as fp
import formulas as fm
from binary import NAN, SIGN, fma, is_nan, mul, negate


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
    gamma: float = 1.0  # -1 for `maximize`
    gradient_scale: float = 1.0  # the caller's multiplier is its inverse
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
                floor = fm.SECOND_FLOOR if self.codec == "root" else fm.ROOT_FLOOR
                self.scales[moment] = [fm.FIRST_FLOOR if first else floor] * groups

    def groups_per_row(self) -> int:
        return -(-self.row_length // fm.GROUP)

    def groups(self) -> list[tuple[int, int, slice]]:
        """(index here, index in the whole tensor, elements) of every group."""
        result = []
        per_row = self.groups_per_row()
        for r in range(self.rows):
            for k in range(per_row):
                begin = r * self.row_length + k * fm.GROUP
                end = min(begin + fm.GROUP, (r + 1) * self.row_length)
                here = r * per_row + k
                result.append((here, self.first_row * per_row + here, slice(begin, end)))
        return result

    def decode(self, moment: str, group: int, where: slice) -> list[int]:
        codes = self.codes[moment][where]
        if self.codec == "none":
            return codes
        kind = "first" if moment == "first" else "second"
        decode = getattr(fm, f"decode_{kind}_{self.codec}")
        scale = self.scales[moment][group]
        # Without the flag the marking codes have no meaning and do not occur.
        assert scale & 1 or (-128 if kind == "first" else 0) not in codes
        return [decode(scale, code) for code in codes]

    def encode(self, moment: str, group: int, index: int, where: slice, x: list[int]) -> None:
        if self.codec == "none":
            store = fm.store_first_plain if moment == "first" else fm.store_second_plain
            self.codes[moment][where] = [store(v) for v in x]
            return
        if moment == "first":
            encode = fm.encode_first_root if self.codec == "root" else fm.encode_first_softsign
            scale, codes = encode(x)
        elif self.codec == "root":
            stream = fm.stream_seed(self.seed, self.key, self.step, 1 if moment == "second" else 2)
            u = [fm.random_byte(stream, index, e) for e in range(len(x))]
            scale, codes = fm.encode_second_root(x, u)
        else:
            scale, codes = fm.encode_second_softsign(x)
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
                w = fm.join(self.weight[i], self.correction[i], self.dtype, self.bits)
                state = {m: moments[m][e] for m in moments}
                weights.append(scalars.update(w, g, state))
                for m in moments:
                    moments[m][e] = state[m]
            for m, x in moments.items():
                self.encode(m, here, index, where, x)
            self.store_weights(index, where, weights)

    def store_weights(self, index: int, where: slice, weights: list[int]) -> None:
        d = 0 if self.dtype == "fp32" else fm.given_up_bits(self.dtype, self.bits)
        streams = [fm.stream_seed(self.seed, self.key, self.step, p) for p in (3, 4)]
        for e, w in enumerate(weights):
            random = None
            if self.stochastic:
                random = fm.stochastic_bits(d, *(fm.random_byte(s, index, e) for s in streams))
            i = where.start + e
            self.weight[i], self.correction[i] = fm.split(w, self.dtype, self.bits, random)


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
        self.gamma = to_float(r64(host(h.gamma) / host(h.gradient_scale)))
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
        v = fma(self.beta2, state["second"], fma(mul(self.rest2, g), g, fm.SECOND_FLOOR))
        state["first"], state["second"] = m, v
        n = v
        if self.hyper.amsgrad:
            x = state["maximum"]
            # Section 6 asks that a NaN is not hidden. Images of v >= 0 are ordered as the values.
            n = state["maximum"] = NAN if is_nan(x) or is_nan(v) else max(x, v)
        d = fma(fp.sqrt(n), self.kappa, self.eps)
        return fma(w, self.decay, negate(mul(mul(self.alpha, m), fp.div(fm.ONE, d))))

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
