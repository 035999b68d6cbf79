"""`ostraka worker`."""

import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ostraka import logs
from ostraka.cli import enrolment
from ostraka.cli.exit_codes import INTERRUPTED
from ostraka.cli.output import Json, help_without_command
from ostraka.cli.signals import stopped_by_signals
from ostraka.errors import ConfigError
from ostraka.files import read_identity
from ostraka.worker import EnclavePin, Staff, WorkerService, kernel_for

_LOG = logging.getLogger("ostraka.worker")
# Libraries read these when they are loaded, and never again.
_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)


@dataclass(frozen=True)
class WorkerStarted:
    """key: the public one, as the operator has enrolled it."""

    worker: str
    key: str
    enclave: str
    device: str


@dataclass(frozen=True)
class WorkerStopped:
    """As it was told to."""

    worker: str


def worker(ctx: typer.Context) -> None:
    """Measure masked updates for an enclave.

    \b
    Examples:
      ostraka worker enrol --name worker-1 --out keys/worker-1.key
      ostraka worker run --enclave 10.0.0.5:7420 --name worker-1 --key keys/worker-1.key
    """
    help_without_command(ctx)


def run(
    *,
    enclave: Annotated[str, typer.Option(help="HOST:PORT of the enclave's service.")],
    name: Annotated[str, typer.Option(help="This worker's name on the roster.")],
    key: Annotated[Path, typer.Option(help="This worker's key file.")],
    enclave_key: Annotated[
        str | None,
        typer.Option(help="The enclave's receipt key, in hex; unless given, that of the first."),
    ] = None,
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

    Dials in, so it may sit behind NAT, and comes back by itself whenever the enclave is gone. Sees
    masked rows only. Without --enclave-key the first enclave that gives it work is remembered in a
    file beside the key, and no other is served after that. SIGTERM ends it with exit code 0,
    Ctrl-C with 130.

    \b
    Examples:
      ostraka worker run --enclave 10.0.0.5:7420 --name worker-1 --key keys/worker-1.key
      ostraka worker run --enclave fl.example:7420 --name w2 --key w2.key --tls-ca ca.pem --log-json
      ostraka worker run --enclave 10.0.0.5:7420 --name w2 --key w2.key --device cpu --threads 4
    """
    _limit_threads(threads)
    logs.setup(json=log_json)
    identity = read_identity(key)
    pin = EnclavePin.beside(key) if enclave_key is None else EnclavePin.given(enclave_key)
    kernel, chosen = kernel_for(device)
    service = WorkerService(enclave, Staff(name, identity, kernel, pin), tls_ca=tls_ca)
    logs.event(_LOG, WorkerStarted(name, identity.public.hex(), enclave, chosen))
    with stopped_by_signals(service.stop) as caught:
        service.run()
    logs.event(_LOG, WorkerStopped(name))
    if signal.SIGINT in caught:
        raise typer.Exit(INTERRUPTED)


def enrol(
    *,
    name: Annotated[str, typer.Option(help="Letters, digits, dots, underscores, hyphens.")],
    out: Annotated[
        Path | None, typer.Option(help="The new key file; the name and .key unless given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key, and print the lines that enrol it.

    The private key stays in a file that only you can read, and is never written over. The lines
    are for the operator, who adds them to federation.toml, raises its revision and signs it.
    Clients pin the keys of workers in their policies, too.

    \b
    Examples:
      ostraka worker enrol --name worker-1
      ostraka worker enrol --name worker-1 --out keys/worker-1.key --json
    """
    enrolment.enrol("worker", name, out, as_json=as_json)


def _limit_threads(threads: int | None) -> None:
    """Start this program anew with so many threads, unless it was started with them."""
    if threads is None:
        return
    wanted = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    if wanted.items() <= os.environ.items():
        return
    try:
        os.execve(sys.executable, sys.orig_argv, os.environ | wanted)  # noqa: S606 (ourselves)
    except OSError as failed:
        raise ConfigError(f"cannot start again with {threads} threads: {failed}") from None
