"""`ostraka worker run`."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from ostraka import logs
from ostraka.errors import INTERRUPTED, ConfigError
from ostraka.files import read_identity
from ostraka.worker import EnclavePin, Staff, Verifier, WorkerService, kernel_for

_LOG = logging.getLogger("ostraka.worker")
# Libraries read these when they are loaded, and never again.
_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
_STOP = (signal.SIGTERM, signal.SIGINT)
_NO_SIGNAL = 0


@dataclass(frozen=True)
class WorkerStarted:
    """An event: a worker begins to serve. key: its public key, as the operator has enrolled it."""

    worker: str
    key: str
    enclave: str
    device: str


@dataclass(frozen=True)
class WorkerStopped:
    """An event: a worker was told to stop, and did."""

    worker: str


def run(
    *,
    enclave: Annotated[str, typer.Option(help="HOST:PORT of the enclave's service.")],
    name: Annotated[str, typer.Option(help="This worker's name on the roster.")],
    key: Annotated[Path, typer.Option(help="This worker's key file.")],
    policy: Annotated[
        Path | None, typer.Option(help="What an enclave has to prove: a policy file.")
    ] = None,
    receipt_key: Annotated[
        str | None, typer.Option(help="The receipt key of the one enclave to serve, in hex.")
    ] = None,
    unsafe_simulation: Annotated[
        bool,
        typer.Option("--unsafe-simulation", help="Accept a simulated enclave if the policy does."),
    ] = False,
    device: Annotated[
        str, typer.Option(help="cpu, torch-cpu, cuda, cuda:N, or auto: a GPU if there is one.")
    ] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="For the processor's arithmetic; all, unless given.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="TLS, with the certificates in this PEM file.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
) -> None:
    """Serve an enclave until stopped.

    The worker dials the enclave, so it may sit behind NAT, and dials again when the connection is
    lost. It sees masked rows only. It serves an enclave that proves to be what --policy asks for,
    or the one with this --receipt-key. The first that was proved is remembered in a file beside the
    key, and no other is served after that; with both options, --receipt-key names the next. SIGTERM
    ends it with exit code 0, Ctrl-C with 130.

    \b
    Examples:
      ostraka worker run --enclave fl.example:7420 --name w1 --key w1.key --policy policy.toml
      ostraka worker run --enclave 10.0.0.5:7420 --name w2 --key w2.key --receipt-key 5f1c...
    """
    _limit_threads(threads)
    logs.setup(json=log_json)
    identity = read_identity(key)
    verifier = Verifier.of(policy, unsafe_simulation=unsafe_simulation) if policy else None
    pin = EnclavePin.chosen(key, receipt_key=receipt_key, verifier=verifier)
    kernel, chosen = kernel_for(device)
    service = WorkerService(enclave, Staff(name, identity, kernel, pin), tls_ca=tls_ca)
    logs.event(_LOG, WorkerStarted(name, identity.public.hex(), enclave, chosen))
    with stopped_by_signals(service.stop) as caught:
        service.run()
    logs.event(_LOG, WorkerStopped(name))
    if signal.SIGINT in caught:
        raise typer.Exit(INTERRUPTED)


def _limit_threads(threads: int | None) -> None:
    """Start this program again with this number of threads, unless it was started with it."""
    if threads is None:
        return
    wanted = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    if wanted.items() <= os.environ.items():
        return
    try:
        os.execve(sys.executable, sys.orig_argv, os.environ | wanted)  # noqa: S606 (ourselves)
    except OSError as failed:
        raise ConfigError(f"cannot start again with {threads} threads: {failed}") from None


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Call `stop` on SIGTERM and Ctrl-C. Yields the list of signals that have come.

    A thread of its own calls it: a handler interrupts the main thread anywhere, perhaps while that
    holds a lock that `stop` needs.
    """
    caught: list[int] = []
    reading, writing = os.pipe()

    def listen() -> None:
        while (number := os.read(reading, 1)[0]) != _NO_SIGNAL:
            caught.append(number)
            stop()

    def pass_on(number: int, _: object) -> None:
        os.write(writing, bytes([number]))

    listener = Thread(target=listen, name="signals", daemon=True)
    listener.start()
    old = {each: signal.signal(each, pass_on) for each in _STOP}
    try:
        yield caught
    finally:
        for each, handler in old.items():
            signal.signal(each, handler)
        os.write(writing, bytes([_NO_SIGNAL]))
        listener.join()
        os.close(reading)
        os.close(writing)
