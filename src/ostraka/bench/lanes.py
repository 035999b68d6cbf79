"""Threads for the enclave, as a driver lends them."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ostraka.protocol.enclave import Lanes


@contextlib.contextmanager
def lanes(threads: int) -> Iterator[Lanes]:
    with ThreadPoolExecutor(threads) as pool:
        yield Lanes(threads, pool.map) if threads > 1 else Lanes()
