"""Data for the lab: images with labels, kept in the user's cache.

dataset     labelled images; MNIST's files, and the digits that come with scikit-learn
cifar       CIFAR-10, in the formats it comes in
catalogue   the data sets that can be fetched
sources     downloads, packages and archives
cache       where data sets are kept, and how they get there (`ostraka data get`)
partition   which client holds which examples
"""

from pathlib import Path

from ostraka_lab.data import cache as kept
from ostraka_lab.data.catalogue import FETCHED, Entry
from ostraka_lab.data.dataset import DIGITS, Dataset, Split, load_digits
from ostraka_lab.names import find

__all__ = ["DATASETS", "Dataset", "Split", "load"]

# Those that need no fetching have no entry.
DATASETS: dict[str, Entry | None] = {DIGITS: None, **FETCHED}


def load(name: str, *, cache: Path | None = None) -> Dataset:
    """Load a data set from the cache. cache: instead of the user's.

    Raises ConfigError, which says what to run, if it is not there.
    """
    entry = find("data set", name, DATASETS)
    if entry is None:
        return load_digits()
    place = kept.folder(name, cache)
    kept.require(entry, place)
    return entry.read(place)
