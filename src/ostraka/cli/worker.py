"""`ostraka worker run`."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from ostraka import logs
from ostraka.errors import INTERRUPTED, ConfigError
from ostraka.files import read_identity
from ostraka.worker import (
    EnclavePin,
    RayKernel,
    RayOptions,
    Staff,
    Verifier,
    WorkerService,
    kernel_for,
    serve_all,
)
from ostraka.worker.backends import AUTO

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
    enclave: Annotated[
        list[str],
        typer.Option(
            metavar="HOST:PORT", help="The enclave's service; again for each of its shards."
        ),
    ],
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
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Compute on a Ray cluster: auto, or its HOST:PORT."),
    ] = None,
    ray_actors: Annotated[
        int | None, typer.Option(min=1, help="Processes on the cluster; as many as fit.")
    ] = None,
    gpus_per_actor: Annotated[
        float | None, typer.Option(min=0, help="GPUs of each such process; 0 for its processor.")
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

    An enclave of several machines is a lead and its shards: give the address of each. The worker
    keeps a stream to each, under one identity and with one device. The policy or the receipt key is
    the lead's, which vouches for its shards. It ends when all of them have published their rounds.

    With --ray, processes of a Ray cluster open the tiles and compute; the extra "ray" is needed.
    Who reaches that cluster is this worker: it must serve no other worker.

    \b
    Examples:
      ostraka worker run --enclave fl.example:7420 --name w1 --key w1.key --policy policy.toml
      ostraka worker run --enclave 10.0.0.5:7420 --name w2 --key w2.key --receipt-key 5f1c...
      ostraka worker run --enclave fl:7420 --name w3 --key w3.key --policy p.toml --ray auto
      ostraka worker run --enclave lead:7420 --enclave shard:7420 --name w4 --key w4.key --policy p
    """
    _require_distinct(enclave)
    _limit_threads(threads)
    logs.setup(json=log_json)
    identity = read_identity(key)
    verifier = Verifier.of(policy, unsafe_simulation=unsafe_simulation) if policy else None
    pin = EnclavePin.chosen(key, receipt_key=receipt_key, verifier=verifier)
    options = _ray_options(ray, ray_actors, gpus_per_actor, device)
    with ExitStack() as cluster:
        if options is None:
            kernel, chosen = kernel_for(device)
        else:
            kernel = cluster.enter_context(closing(RayKernel(options)))
            chosen = f"ray:{options.address}"
        staff = Staff(name, identity, kernel, pin)
        services = [WorkerService(address, staff, tls_ca=tls_ca) for address in enclave]
        logs.event(_LOG, WorkerStarted(name, identity.public.hex(), ", ".join(enclave), chosen))

        def stop() -> None:
            for each in services:
                each.stop()
            cluster.close()  # A computation may be waiting for it.

        with stopped_by_signals(stop) as caught:
            serve_all(services)
    logs.event(_LOG, WorkerStopped(name))
    if signal.SIGINT in caught:
        raise typer.Exit(INTERRUPTED)


def _require_distinct(addresses: list[str]) -> None:
    """Raises ConfigError for an address that is given twice: each stream would end the other."""
    for address in addresses:
        if addresses.count(address) > 1:
            raise ConfigError(f"--enclave {address} is given twice")


def _ray_options(
    address: str | None, actors: int | None, gpus: float | None, device: str
) -> RayOptions | None:
    """Return what to ask of a Ray cluster, or None to compute here. Raises ConfigError."""
    if address is None:
        if actors is not None or gpus is not None:
            raise ConfigError("--ray-actors and --gpus-per-actor need --ray")
        return None
    if device != AUTO:
        raise ConfigError(
            f"--device {device} is for this machine; with --ray, --gpus-per-actor 1 computes on "
            "GPUs of the cluster, and 0 on its processors"
        )
    return RayOptions(address, actors, gpus or 0.0)


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
