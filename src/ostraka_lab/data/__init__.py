"""Data for the lab: images with labels, kept in the user's cache.

`ostraka data get` puts them there; digits come with scikit-learn and need nothing.
"""

from pathlib import Path

from ostraka_lab.data import cache as kept
from ostraka_lab.data import digits
from ostraka_lab.data.catalogue import FETCHED, Entry
from ostraka_lab.data.dataset import Dataset, Split
from ostraka_lab.names import find

__all__ = ["DATASETS", "Dataset", "Split", "load"]

# Those that need no fetching have no entry.
DATASETS: dict[str, Entry | None] = {digits.NAME: None, **FETCHED}


def load(name: str, *, cache: Path | None = None) -> Dataset:
    """From the cache; cache: instead of the user's. Raises ConfigError, which says what to run."""
    entry = find("data set", name, DATASETS)
    if entry is None:
        return digits.load()
    place = kept.folder(name, cache)
    kept.require(entry, place)
    return entry.read(place)
