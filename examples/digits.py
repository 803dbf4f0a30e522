"""Writes the handwritten digits that come with scikit-learn to a file that C++ reads at once.

Usage: digits.py FILE

1797 records of 65 bytes: an image of 8 x 8 grey values from 0 to 16, and the digit. They are the
test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak; UCI Machine
Learning Repository, doi 10.24432/C50P49, CC BY 4.0).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: digits.py FILE", file=sys.stderr)
        return 2
    digits = load_digits()
    records = np.column_stack([digits.data, digits.target]).astype(np.uint8)
    Path(arguments[0]).write_bytes(records.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
