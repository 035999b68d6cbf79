"""The digits that scikit-learn ships: 1,797 images of 8 x 8, nothing to download.

They are the test set of the UCI's "Optical Recognition of Handwritten Digits" (Alpaydin and
Kaynak 1998).
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ostraka.errors import ConfigError
from ostraka_lab.data.dataset import Dataset, Int64, Split, UInt8

NAME = "digits"

# Two of every seven are kept for the test: the labels come in runs of ten, with which seven has
# no factor in common, so that all digits are about as frequent in both parts.
_CYCLE, _TESTED = 7, 2
_MEAN, _STD = 0.3057, 0.3760
_BRIGHTEST = 16


def load() -> Dataset:
    """Raises ConfigError where scikit-learn is not installed."""
    images, labels = _read()
    test = np.arange(len(labels)) % _CYCLE < _TESTED
    return Dataset(
        NAME,
        train=Split(images[~test], labels[~test]),
        test=Split(images[test], labels[test]),
        classes=10,
        mean=(_MEAN,),
        std=(_STD,),
    )


def _read() -> tuple[UInt8, Int64]:
    """All images (n, 1, 8, 8), from 0 to 255, and their labels (n,)."""
    file = _file()
    if file is None:
        raise ConfigError("digits come with scikit-learn, which is missing: pip install it")
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    pixels = (table[:, :-1] * 255 + _BRIGHTEST // 2) // _BRIGHTEST
    return pixels.astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1].copy()


def installed() -> bool:
    return _file() is not None


def _file() -> Path | None:
    """Found as a file: to import scikit-learn takes seconds in each of a run's processes."""
    package = find_spec("sklearn")
    places = (package.submodule_search_locations or ()) if package else ()
    files = (Path(place) / "datasets" / "data" / "digits.csv.gz" for place in places)
    return next((file for file in files if file.is_file()), None)
