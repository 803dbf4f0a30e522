"""Correctly rounded binary32 and binary64 arithmetic on integers and fractions.

A float is handled as its 32-bit image, an int. Nothing here uses the machine's floating-point
arithmetic, except that a Python float is taken apart exactly into a fraction.
"""

from fractions import Fraction
from math import isqrt

MASK32 = 0xFFFFFFFF
SIGN = 0x80000000
INF = 0x7F800000
NAN = 0x7FC00000


def is_nan(b: int) -> bool:
    return b & 0x7FFFFFFF > INF


def is_finite(b: int) -> bool:
    return b & 0x7FFFFFFF < INF


def is_zero(b: int) -> bool:
    return b & 0x7FFFFFFF == 0


def negate(b: int) -> int:
    return b ^ SIGN


def magnitude(b: int) -> int:
    return b & 0x7FFFFFFF


def value(b: int) -> Fraction:
    """The exact value of a finite image."""
    exponent, fraction = b >> 23 & 0xFF, b & 0x7FFFFF
    significand = fraction | (0x800000 if exponent else 0)
    power = max(exponent, 1) - 150
    exact = Fraction(significand << power) if power >= 0 else Fraction(significand, 1 << -power)
    return -exact if b & SIGN else exact


def nearest_even(numerator: int, denominator: int) -> int:
    """numerator / denominator (both >= 0) rounded to an integer, ties to even."""
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    if twice > denominator or (twice == denominator and quotient & 1):
        quotient += 1
    return quotient


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if (x >= Fraction(2) ** e) else e - 1


def round_magnitude(x: Fraction, precision: int, emin: int, emax: int) -> Fraction | None:
    """x > 0 rounded to nearest even in a binary format; None for an overflow."""
    quantum = max(floor_log2(x), emin) - (precision - 1)
    scaled = x / Fraction(2) ** quantum
    rounded = nearest_even(scaled.numerator, scaled.denominator) * Fraction(2) ** quantum
    return None if rounded >= Fraction(2) ** (emax + 1) else rounded


def image(x: Fraction, zero_sign: int = 0) -> int:
    """The binary32 image of x rounded to nearest even; an exact zero gets zero_sign."""
    if x == 0:
        return zero_sign
    sign = SIGN if x < 0 else 0
    rounded = round_magnitude(abs(x), 24, -126, 127)
    if rounded is None:
        return sign | INF
    if rounded == 0:
        return sign
    e = floor_log2(rounded)
    if e < -126:
        return sign | int(rounded * Fraction(2) ** 149)
    return sign | (e + 127) << 23 | (int(rounded * Fraction(2) ** (23 - e)) & 0x7FFFFF)


def round64(x: Fraction) -> Fraction:
    """x rounded once to binary64 (host scalars never leave its normal range)."""
    if x == 0:
        return x
    rounded = round_magnitude(abs(x), 53, -1022, 1023)
    assert rounded is not None
    return -rounded if x < 0 else rounded


def sqrt64(x: Fraction) -> Fraction:
    """The square root of a binary64 x > 0, rounded once to binary64."""
    e = floor_log2(x) // 2
    scaled = x * Fraction(4) ** (52 - e)
    root = isqrt(int(scaled))
    # The next integer is nearer when scaled exceeds (root + 1/2)^2, which no exact root reaches.
    return (root + (scaled > root * root + root + Fraction(1, 4))) * Fraction(2) ** (e - 52)


def fma(a: int, b: int, c: int) -> int:
    if is_nan(a) or is_nan(b) or is_nan(c):
        return NAN
    product_sign = (a ^ b) & SIGN
    if not (is_finite(a) and is_finite(b)):
        if is_zero(a) or is_zero(b) or (not is_finite(c) and c & SIGN != product_sign):
            return NAN
        return product_sign | INF
    if not is_finite(c):
        return c
    exact = value(a) * value(b) + value(c)
    if exact == 0:
        # A sum of two zeros of one sign keeps it; every other exact zero is positive.
        both_zero = is_zero(c) and (is_zero(a) or is_zero(b))
        return product_sign & c & SIGN if both_zero else 0
    return image(exact)


def mul(a: int, b: int) -> int:
    if is_nan(a) or is_nan(b):
        return NAN
    sign = (a ^ b) & SIGN
    if not (is_finite(a) and is_finite(b)):
        return NAN if is_zero(a) or is_zero(b) else sign | INF
    return image(value(a) * value(b), sign)


def add(a: int, b: int) -> int:
    return fma(a, image(Fraction(1)), b)


def sub(a: int, b: int) -> int:
    return add(a, negate(b))


def div(a: int, b: int) -> int:
    if is_nan(a) or is_nan(b):
        return NAN
    sign = (a ^ b) & SIGN
    if not is_finite(a):
        return NAN if not is_finite(b) else sign | INF
    if not is_finite(b):
        return sign
    if is_zero(b):
        return NAN if is_zero(a) else sign | INF
    return image(value(a) / value(b), sign)


def sqrt(a: int) -> int:
    if is_nan(a) or is_zero(a):
        return NAN if is_nan(a) else a
    if a & SIGN:
        return NAN
    if a == INF:
        return INF
    x = value(a)
    e = floor_log2(x) // 2
    scaled = x * Fraction(4) ** (23 - e)
    root = isqrt(scaled.numerator // scaled.denominator)
    root += scaled > root * root + root + Fraction(1, 4)
    return image(root * Fraction(2) ** (e - 23))


def rne(b: int) -> int:
    """The integer nearest to a finite float, ties to even."""
    x = value(b)
    n = nearest_even(abs(x).numerator, abs(x).denominator)
    return -n if x < 0 else n


def from_int(n: int) -> int:
    return image(Fraction(n))


def power_of_two(e: int) -> int:
    return image(Fraction(2) ** e)


def bf16_to_float(h: int) -> int:
    return h << 16


def fp16_to_float(h: int) -> int:
    sign, exponent, fraction = (h & 0x8000) << 16, h >> 10 & 0x1F, h & 0x3FF
    if exponent == 0x1F:
        return sign | (NAN if fraction else INF)
    significand = fraction | (0x400 if exponent else 0)
    return sign | image(significand * Fraction(2) ** (max(exponent, 1) - 25))
