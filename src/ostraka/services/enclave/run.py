"""From a federation file to a running service."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from prometheus_client import start_http_server

from ostraka import events
from ostraka.core import optimiser
from ostraka.crypto.sealing import Sealer
from ostraka.errors import ConfigError
from ostraka.events import Event
from ostraka.messages import SIMULATION
from ostraka.services import federation_file
from ostraka.services.enclave.engine import Engine, Phase, adopted
from ostraka.services.enclave.limits import Rate, Share
from ostraka.services.enclave.platform import Platform
from ostraka.services.enclave.servicer import Servicer
from ostraka.services.enclave.status import Status
from ostraka.services.enclave.workers import Pool
from ostraka.services.federation_file import FederationFile, charter_path
from ostraka.services.storage.state import EnclaveState
from ostraka.transport.ostraka_pb2_grpc import add_EnclaveServicer_to_server

_KIB = 2**10
_VALUE_BYTES = 8
_STOP_S = 5.0
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000


def open_state(file: FederationFile, path: Path, platform: Platform) -> EnclaveState:
    """The enclave's sealed state; at the first start, a new one under the signed charter."""
    sealer = Sealer(platform.keys.key(), platform.identity)
    state = EnclaveState.open(file.state, sealer, keep=file.storage.keep_models)
    if state.fresh:
        charter = federation_file.load_charter(charter_path(path))
        federation_file.require_signed(file, charter)
        _, first = file.initial_model()
        state.found(charter, optimiser.start(first, charter.federation.rules.optimiser))
    return state


async def serve(path: Path, platform: Platform, log: Callable[[Event], None]) -> None:
    """Run the federation's rounds until they are done, or a signal asks to stop."""
    file = federation_file.load(path)
    status = Status(platform.provider.kind == SIMULATION, platform.provider.kind)

    def tell(event: Event) -> None:
        status.note(event)
        log(event)

    with open_state(file, path, platform) as state:
        engine = Engine(
            path=path,
            file=file,
            state=state,
            enclave=state.start(evidence=platform.provider.kind),
            pool=Pool(asyncio.get_running_loop()),
            tell=tell,
        )
        status.engine = engine
        _stop_on_signals(engine)
        server, address = await _start(engine, platform, status)
        tell(
            events.ServiceStarted(
                address=address,
                evidence=platform.provider.kind,
                identity=platform.identity.hex(),
                sealing_key=platform.keys.name,
                next_round=engine.published + 1,
            )
        )
        for notice in state.notices:
            tell(events.StorageNoticed(notice))
        tell(adopted(engine.federation))
        try:
            await engine.run()
            await _linger(engine)
            tell(events.Stopping(str(engine.phase)))
        finally:
            engine.pool.close()  # A worker's stream would last until it is cut off.
            await server.stop(_STOP_S)


async def _start(engine: Engine, platform: Platform, status: Status) -> tuple[grpc.aio.Server, str]:
    file, limits = engine.file, engine.file.limits
    server = grpc.aio.server(options=_options(file), maximum_concurrent_rpcs=limits.connections)
    servicer = Servicer(
        engine=engine,
        provider=platform.provider,
        status=status,
        uploads=asyncio.Semaphore(limits.uploads),
        rate=Rate(limits.requests_per_minute),
        strangers=Share(max(1, limits.connections // 2)),
    )
    add_EnclaveServicer_to_server(servicer, server)
    host = file.enclave.listen.rpartition(":")[0]
    try:
        port = _bind(server, file)
        if file.enclave.metrics is not None:
            metrics_host, _, metrics_port = file.enclave.metrics.rpartition(":")
            start_http_server(int(metrics_port), metrics_host.strip("[]"), status.registry)
    except (RuntimeError, OSError) as taken:
        raise ConfigError(f"cannot listen on {file.enclave.listen}: {taken}") from None
    await server.start()
    return server, f"{host}:{port}"


def _bind(server: grpc.aio.Server, file: FederationFile) -> int:
    tls = file.tls()
    if tls is None:
        return server.add_insecure_port(file.enclave.listen)
    key, certificate = tls
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    return server.add_secure_port(file.enclave.listen, credentials)


def _options(file: FederationFile) -> list[tuple[str, int]]:
    """Nothing larger than a batch of tiles or a worker's answer is taken in."""
    n = len(file.clients)
    largest = max(file.limits.message_kib * _KIB, n * (n + 1) // 2 * _VALUE_BYTES + _KIB)
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _stop_on_signals(engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError, ValueError):  # Outside of the main thread there are no signals.
            loop.add_signal_handler(number, engine.stopping.set)


async def _linger(engine: Engine) -> None:
    """Stay a while after the last round, so that every client can fetch its outcome."""
    if engine.phase is Phase.FINISHED:
        with suppress(TimeoutError):
            async with asyncio.timeout(engine.file.rounds.linger_s):
                await engine.stopping.wait()
