"""Pictures of letters and digits in many typefaces, from Debian's font packages."""

from __future__ import annotations

import hashlib
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.archive import Array
from experiments.data_packages import fetch, unpack, version_of

CHARACTERS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
SIDE: Final = 32
VALIDATION_SHARE: Final = 0.15  # of the families

_FONT_SIZE: Final = 26
_BASELINE: Final = 24
_ADF: Final = "accanthis baskervald berenis gillius ikarius irianis libris mekanus oldania romande"
_OTHERS: Final = """
    adf-solothurn adf-switzera adf-tribun adf-universalis adf-verana aenigma averia-sans-gwf
    averia-serif-gwf b612 cabin cantarell clear-sans cmu comfortaa comic-neue croscore
    crosextra-caladea crosextra-carlito dejavu-core dejavu-extra dosis dustin ebgaramond
    fantasque-sans freefont-ttf georgewilliams gfs-didot go hack inconsolata junicode jura lato
    liberation2 linuxlibertine lmodern manrope oldstandard open-sans opendyslexic paratype play
    quattrocento quicksand roboto-slab roboto-unhinted sil-andika sil-charis sil-gentiumplus sora
    texgyre tiresias tuffy ubuntu-title urw-base35 vollkorn yanone-kaffeesatz yrsa-rasa
"""
PACKAGES: Final = tuple(
    sorted(f"fonts-{name}" for name in [*(f"adf-{n}" for n in _ADF.split()), *_OTHERS.split()])
)


def make(packages: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Pictures and classes for training and validation, and words about them.

    Whole families are held out: no typeface, slant or weight of one is in both parts.
    """
    import PIL

    found = fetch(PACKAGES, packages)
    pictures: dict[str, list[Array]] = {"train": [], "validation": []}
    families: dict[str, set[str]] = {"train": set(), "validation": set()}
    seen: set[bytes] = set()
    with tempfile.TemporaryDirectory() as folder:
        for name, package in found.items():
            unpack(package, Path(folder) / name)
        for family, typeface in _typefaces(Path(folder)):
            # The same typeface comes in several packages and formats.
            digest = hashlib.sha256(typeface.tobytes()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            part = "validation" if _share(family) < VALIDATION_SHARE else "train"
            pictures[part].append(typeface)
            families[part].add(family)
    arrays = {}
    for part, typefaces in pictures.items():
        arrays[f"{part}_pictures"] = np.concatenate(typefaces)
        arrays[f"{part}_classes"] = np.tile(
            np.arange(len(CHARACTERS), dtype=np.uint8), len(typefaces)
        )
    about = {
        "source": {name: version_of(package) for name, package in found.items()},
        "renderer": f"pillow {PIL.__version__}",
        "characters": CHARACTERS,
        "typefaces": {part: len(typefaces) for part, typefaces in pictures.items()},
        "families": {part: len(names) for part, names in families.items()},
    }
    return arrays, about


def _share(family: str) -> float:
    """A number in [0, 1) that depends on the name only."""
    return int.from_bytes(hashlib.sha256(family.encode()).digest()[:4], "big") / 2**32


def _typefaces(folder: Path) -> Iterator[tuple[str, Array]]:
    """Family and pictures of each typeface that has all characters, each in a shape of its own."""
    from PIL import ImageFont

    paths = [path for end in ("ttf", "otf") for path in folder.rglob(f"*.{end}") if path.is_file()]
    for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix()):
        try:
            font = ImageFont.truetype(str(path), _FONT_SIZE)
            pictures = np.stack([_picture(font, character) for character in CHARACTERS])
        except OSError:  # a damaged one, or of a kind that FreeType does not read
            continue
        # Characters that a font lacks look alike, and so do those of a font without small letters.
        if len({picture.tobytes() for picture in pictures}) == len(CHARACTERS):
            yield str(font.getname()[0]), pictures


def _picture(font: Any, character: str) -> Array:
    """A character, white on black in 16 shades, all on one base line."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(image).text((SIDE / 2, _BASELINE), character, 255, font, anchor="ms")
    return np.asarray(image) // 16 * 17
