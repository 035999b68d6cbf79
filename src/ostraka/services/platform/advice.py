"""An error of the operating system, told so that an operator knows what to do about it."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ostraka.errors import OstrakaError, PlatformError


@contextmanager
def explained(
    doing: str, advice: Mapping[int, str], *, advised: type[OstrakaError] = PlatformError
) -> Iterator[None]:
    """Turns an OSError into a PlatformError. advice: what to do, by error number.

    advised: the error to raise instead where there is advice.
    """
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        code = errno.errorcode.get(number, "no code")
        where = f" at {error.filename}" if error.filename else ""
        what = f"{doing}: {os.strerror(number)} ({code}){where}"
        if number in advice:
            raise advised(f"{what}: {advice[number]}") from error
        raise PlatformError(what) from error
