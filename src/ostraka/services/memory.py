"""Freed memory goes back to the system, so that what a service holds is what it uses.

The C library keeps what was freed, scattered over as many arenas as there were threads; and gRPC
leaves a cycle of objects behind every call, which Python finds late. With a thousand uploads that
is more than all that is in use.
"""

import ctypes
import gc
from contextlib import suppress

# Of glibc's malloc.h: arenas at most; and bytes that are taken from the system and given back alone
_ARENA_MAX, _ARENAS = -8, 2
_MMAP_THRESHOLD, _LARGE = -3, 2**21


def keep_little() -> None:
    """To be called before threads start. Does nothing where the C library is not glibc."""
    with suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, _ARENAS)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)


def give_back() -> None:
    """Takes milliseconds; between the stages of a round, and once for many uploads."""
    gc.collect()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
