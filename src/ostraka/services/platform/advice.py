"""An error of the operating system, told so that an operator knows what to do about it."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ostraka.errors import PlatformError


@contextmanager
def explained(doing: str, advice: Mapping[int, str]) -> Iterator[None]:
    """Turns an OSError into a PlatformError. advice: what to do, by error number."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        code = errno.errorcode.get(number, "no code")
        where = f" at {error.filename}" if error.filename else ""
        what = f"{doing}: {os.strerror(number)} ({code}){where}"
        raise PlatformError(f"{what}: {advice[number]}" if number in advice else what) from error
