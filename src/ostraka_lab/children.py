"""Starts processes, reads their logs, and ends them: none outlives the process that started it.

python -m ostraka_lab.children PARENT MODULE [ARGUMENTS ...]
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from ostraka.errors import ServiceError

Logged: TypeAlias = dict[str, Any]
"""One event, as a service logs it in JSON."""

_STOP_S = 3.0  # for processes to end when they are told to
_POLL_S = 0.02
_SHOWN = 12  # last lines of a process that failed
_COMMON = ("event", "level", "logger", "simulated", "time")  # fields of all events
_PR_SET_PDEATHSIG = 1

# Many processes share few cores, so each gets one thread. gRPC must not write to stderr.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GRPC_VERBOSITY": "NONE",
}


@dataclass(eq=False)
class Child:
    """A process that was started. serves: it must not end by itself, not even with success.

    spare: the others can go on without it, however it ends.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    serves: bool
    spare: bool = False
    _begun: int = 0  # where its part of the log begins
    _read: int = field(init=False)

    def __post_init__(self) -> None:
        self._read = self._begun

    def events(self) -> list[Logged]:
        """Read what it has logged since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return [event for line in whole.splitlines() if (event := _event(line))]

    def require_well(self) -> None:
        """Raises ServiceError, with its last lines, if it ended and should not have."""
        if not self.spare and (how := self.failure()):
            raise self.failed(how)

    def failure(self) -> str | None:
        """How it ended, if it ended and should not have."""
        code = self.process.poll()
        return _ending(code) if code is not None and (code or self.serves) else None

    def failed(self, how: str) -> ServiceError:
        return ServiceError(f"{self.name} {how}. Its last lines:{self._last_lines()}")

    def _last_lines(self) -> str:
        lines = self.log.read_bytes()[self._begun :].splitlines()[-_SHOWN:]
        return "".join(f"\n  {_readable(line)}" for line in lines) or "\n  (none)"


@dataclass
class Children:
    """Processes that end with this block. logs: the folder with a log file for each."""

    logs: Path
    started: list[Child] = field(default_factory=list)

    def __enter__(self) -> "Children":
        self.logs.mkdir(exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(
        self, name: str, module: str, *arguments: str, serves: bool, spare: bool = False
    ) -> Child:
        """Run a module in a process of its own. Its output is added to its log.

        Call it from the main thread: for the kernel, the thread that starts a process is the parent
        whose end it shares.
        """
        log = self.logs / f"{name}.log"
        tether = ("-P", "-m", "ostraka_lab.children", str(os.getpid()))
        with log.open("ab") as out:
            before = out.tell()
            process = subprocess.Popen(  # noqa: S603 (this interpreter, and arguments of our own)
                [sys.executable, *tether, module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | _ENVIRONMENT,
                # A group of its own: Ctrl-C reaches this process alone, and this one ends the rest.
                start_new_session=True,
            )
        child = Child(name, process, log, serves, spare, before)
        self.started.append(child)
        return child

    def require_well(self) -> None:
        """Raises ServiceError if one of them has failed."""
        for child in self.started:
            child.require_well()

    def wait(self, seconds: float) -> None:
        """Wait this long for those that end by themselves. Raises ServiceError."""
        until = time.monotonic() + seconds
        ending = [child for child in self.started if not child.serves]
        while any(child.process.poll() is None for child in ending):
            self.require_well()
            if time.monotonic() > until:
                late = next(child for child in ending if child.process.poll() is None)
                raise late.failed("does not end")
            time.sleep(_POLL_S)
        self.require_well()

    def stop(self) -> None:
        """End all of them: by request, or by force if that takes long or is interrupted."""
        running = [child.process for child in self.started]
        try:
            for process in running:
                process.terminate()
            until = time.monotonic() + _STOP_S
            for process in running:
                _wait(process, until - time.monotonic())
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return  # It is killed next.


def _event(line: bytes) -> Logged | None:
    """Parse a line of a log. None if it is no event, such as a line of a Python traceback."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _readable(line: bytes) -> str:
    event = _event(line)
    if event is None:
        return line.decode("utf-8", "replace")
    fields = (f"{name}={value}" for name, value in event.items() if name not in _COMMON)
    return " ".join([str(event.get("event")), *fields])


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, as the kernel does where memory runs out"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def main() -> None:
    """Become the module that is named, tied to the process that started it.

    A new program takes the place of this one, so that nothing of the lab is in its process. The
    request to the kernel stays in force.
    """
    parent, module, *arguments = sys.argv[1:]
    _die_with(int(parent))
    # This interpreter, and no shell.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # It was gone before the kernel knew.
        sys.exit(1)


if __name__ == "__main__":
    main()
