"""Starts the benchmark's own process, with its threads pinned, and listens to it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

from ostraka.bench.plan import Plan
from ostraka.errors import ConfigError, LocalProtocolError

_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)


def run_kernels(plan: Plan, on_stage: Callable[[str, int, int], None]) -> dict[str, Any]:
    """The figures of a plan. on_stage(name, done, of) is called when a stage begins."""
    plan.require_room()
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        process = subprocess.Popen(  # noqa: S603 (this interpreter, and arguments of our own)
            [sys.executable, "-m", "ostraka.bench.kernels", json.dumps(asdict(plan)), directory],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | dict.fromkeys(_THREAD_VARIABLES, str(plan.threads)),
            text=True,
            # A group of its own: Ctrl-C reaches this process alone, and this one ends the others.
            start_new_session=True,
        )
        try:
            figures = _listen(process.stdout, on_stage) if process.stdout else None
            process.wait()
        finally:
            _end(process)
    if figures is None:
        raise LocalProtocolError(
            f"the benchmark's process ended with code {process.returncode} and without figures"
        )
    return figures


def _listen(events: IO[str], on_stage: Callable[[str, int, int], None]) -> dict[str, Any] | None:
    figures: dict[str, Any] | None = None
    for line in events:
        event: dict[str, Any] = json.loads(line)
        if "stage" in event:
            on_stage(event["stage"], event["done"], event["of"])
        elif "figures" in event:
            figures = event["figures"]
        else:
            raise (ConfigError if event["config"] else LocalProtocolError)(event["error"])
    return figures


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and those it started, if they are still at work."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    if process.stdout:
        process.stdout.close()
