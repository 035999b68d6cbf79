"""One question to one command: a line in, a line out, within a time and a size."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, cast

from ostraka.errors import PlatformError


def ask(command: Sequence[str], request: bytes, *, seconds: float, largest: int) -> bytes:
    """What the command writes to stdout until it ends well. Raises PlatformError.

    The command gets no shell, and its stderr is ours, so that an operator sees what it says.
    """
    deadline = time.monotonic() + seconds
    try:
        with _started(command, request) as process:
            answer = _read(cast(IO[bytes], process.stdout), deadline, largest)
            code = process.wait(_left(deadline))
    except (subprocess.TimeoutExpired, TimeoutError):
        raise PlatformError(f"{command[0]!r} did not end within {seconds:g} s") from None
    except OSError as error:
        raise PlatformError(f"cannot run {command[0]!r}: {error.strerror}") from error
    if code != 0:
        raise PlatformError(f"{command[0]!r} failed with exit code {code}")
    return answer


@contextmanager
def _started(command: Sequence[str], request: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """The command at work, and at the end dead, with whatever it started itself."""
    with _readable(request) as question:
        process = subprocess.Popen(  # noqa: S603 (the operator's own command, and no shell)
            command, stdin=question, stdout=subprocess.PIPE, start_new_session=True
        )
    with process:
        try:
            yield process
        finally:
            # Nobody has waited for it, so its number is still its own.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _readable(request: bytes) -> Iterator[IO[bytes]]:
    """In memory, and not in a pipe: a command that does not read would block us there."""
    with os.fdopen(os.memfd_create("ostraka-request"), "r+b") as question:
        question.write(request)
        question.seek(0)
        yield question


def _read(answers: IO[bytes], deadline: float, largest: int) -> bytes:
    answer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        while len(answer) <= largest:
            if not selector.select(_left(deadline)):
                raise TimeoutError
            part = os.read(answers.fileno(), largest + 1 - len(answer))
            if not part:
                return answer
            answer += part
    raise PlatformError(f"the command's answer is longer than {largest} bytes")


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
