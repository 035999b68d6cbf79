"""Labelled images, as all of the lab has them."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

UInt8: TypeAlias = npt.NDArray[np.uint8]
Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """images: (n, channels, height, width) uint8. labels: (n,) int64."""

    images: UInt8
    labels: Int64

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A task. mean, std: per channel, of the training images / 255."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: channels, height, width."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width
