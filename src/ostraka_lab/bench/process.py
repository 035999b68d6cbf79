"""A benchmark's own process: how it is started, and how it reports."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias

from ostraka.errors import ConfigError, LocalProtocolError, OstrakaError

Figures: TypeAlias = dict[str, Any]
"""What a benchmark measured, as JSON has it."""

Begin: TypeAlias = Callable[[str, int, int], None]
"""begin(what, done, of): a step begins, and this many of all steps are done."""

CLIENT_PROCESSES = 8  # that clients are spread over: threads of one wait for each other

_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)


def report(measure: Callable[[Begin], Figures]) -> int:
    """Run a measurement and report it. Returns the exit code."""
    try:
        figures = measure(_begin)
    except OstrakaError as error:
        _send({"error": str(error), "config": isinstance(error, ConfigError)})
        return 1
    _send({"figures": figures})
    return 0


def _begin(what: str, done: int, of: int) -> None:
    _send({"stage": what, "done": done, "of": of})


def _send(event: Figures) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def run_module(
    module: str,
    arguments: list[str],
    begin: Begin,
    *,
    threads: int = 1,
    python: Path | None = None,
) -> Figures:
    """Run a module that ends in `report`, and give its figures. python: instead of this one."""
    process = subprocess.Popen(  # noqa: S603 (an interpreter, and arguments of our own)
        [str(python or sys.executable), "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        text=True,
        # A group of its own: Ctrl-C reaches this process alone, and this one ends the others.
        start_new_session=True,
    )
    try:
        figures = _listen(process.stdout, begin) if process.stdout else None
        process.wait()
    finally:
        _end(process)
    if figures is None:
        raise LocalProtocolError(
            f"the benchmark's process ended with code {process.returncode} and without figures"
        )
    return figures


def _listen(events: IO[str], begin: Begin) -> Figures | None:
    figures: Figures | None = None
    for line in events:
        event: Figures = json.loads(line)
        if "stage" in event:
            begin(event["stage"], event["done"], event["of"])
        elif "figures" in event:
            figures = event["figures"]
        else:
            raise (ConfigError if event["config"] else LocalProtocolError)(event["error"])
    return figures


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and those that it started, if they still run."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    if process.stdout:
        process.stdout.close()
