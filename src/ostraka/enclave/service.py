"""Starts the service that a federation file describes, and runs it to its end."""

import asyncio
import logging
import math
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import grpc.aio
from prometheus_client import start_http_server

from ostraka import events, federation_file, files
from ostraka.core import optimiser
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.sealing import Sealer
from ostraka.enclave import hardening
from ostraka.enclave.budget import Budget, spare
from ostraka.enclave.downloads import Downloads
from ostraka.enclave.engine import Engine, Phase
from ostraka.enclave.front import Front, Lanes
from ostraka.enclave.lane import Tickets
from ostraka.enclave.lead import Shards
from ostraka.enclave.limits import Punctual, Rate, Share, TooMany, Turns
from ostraka.enclave.platform.choose import Platform
from ostraka.enclave.servicer import Allowance, Servicer
from ostraka.enclave.shard import Finished, Settings, ShardService, ShardServicer
from ostraka.enclave.status import Status
from ostraka.enclave.storage.models import Slices, State
from ostraka.enclave.storage.spool import Spool
from ostraka.enclave.storage.state import EnclaveState
from ostraka.enclave.uploads import Uploads
from ostraka.enclave.workers import Pool
from ostraka.errors import ConfigError, StateError
from ostraka.events import Event
from ostraka.federation_file import FederationFile, abandon_path, charter_path
from ostraka.files import FolderLock
from ostraka.messages import SIMULATION, Abandon
from ostraka.model_file import read_model
from ostraka.protocol.enclave import Memory
from ostraka.protocol.host import lend_threads
from ostraka.transport import ANSWER_PIECE
from ostraka.transport.dial import LOOKAHEAD, Backoff, require_address
from ostraka.transport.ostraka_pb2_grpc import add_EnclaveServicer_to_server

_KIB, _MIB = 2**10, 2**20
_STOP_S = 5.0
_ANYWHERE = ("0.0.0.0", "[::]")  # all addresses of a machine # noqa: S104 (looked up, not bound)
_STABLE_S = 10.0  # after which a stream is worth a quick return
_FOREVER_S = 1e9
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_STREAMS = 16  # calls on one connection at a time; a client needs two
_CALLS = 8  # calls of one enrolled party at a time
_STRANGERS_CALLS = 32  # calls of one address at a time
_RELAYED = 8  # requests a minute from one address for each client, for whom it may be a relay
_GOSSIP = 10  # addresses a minute that are told to have too many connections


def open_state(file: FederationFile, path: Path, platform: Platform) -> EnclaveState:
    """Open the enclave's sealed state. At the first start, found one under the signed charter.

    If an Abandon lies beside the charter, it goes on for an enclave that was lost.
    """
    sealer = Sealer(platform.keys.key(), platform.code_id)
    state = EnclaveState.open(file.state, sealer, keep=file.storage.keep_models)
    if state.fresh:
        charter = federation_file.load_charter(charter_path(path))
        federation_file.require_signed(file, charter)
        abandoned = abandon_path(path)
        leads = file.enclave.shards > 1
        if abandoned.exists():
            if leads:
                raise ConfigError(
                    "an enclave with shards cannot go on for one that was lost: begin without "
                    "shards (enclave.shards = 1)"
                )
            abandon = federation_file.load_abandon(abandoned)
            _, first = read_model(federation_file.abandoned_model_path(path))
            start: State = optimiser.start(first, charter.federation.terms.optimiser)
        elif leads:
            abandon, start = None, Slices(os.urandom(KEY_BYTES))
        else:
            abandon, (_, first) = None, file.initial_model()
            start = optimiser.start(first, charter.federation.terms.optimiser)
        state.found(charter, start, abandon=abandon)
    elif abandon_path(path).exists():
        _require_behind(state, federation_file.load_abandon(abandon_path(path)))
    if state.leads != (file.enclave.shards > 1):
        state.close()
        raise StateError(
            state.folder,
            "was begun with shards, which have the model: write enclave.shards = 2 or more"
            if state.leads
            else "was begun without shards and has the model itself: write enclave.shards = 1",
        )
    return state


def _require_behind(state: EnclaveState, abandon: Abandon) -> None:
    """Raises StateError for a state that was given up: nobody confirms its number any more."""
    number = state.head.number if state.head else 0
    if state.abandon != abandon and number < abandon.number:
        raise StateError(
            state.folder,
            f"is at round {number}, and round {abandon.number} was abandoned since: give the "
            "enclave an empty folder, or move federation.abandon away if it is of another time",
        )


async def serve(
    path: Path,
    platform: Platform,
    log: Callable[[Event], None],
    *,
    sockets: Path | None = None,
) -> None:
    """Run the federation's rounds until they are done, or a signal asks to stop.

    sockets: an empty folder that only this process reaches; a temporary one unless given.
    """
    # gRPC would log every mistake of a peer with a trace, and so let peers fill the log.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    hardening.keep_little()
    file = federation_file.load(path)
    status = Status(platform.provider.kind == SIMULATION, platform.provider.kind)

    def tell(event: Event) -> None:
        status.note(event)
        log(event)

    with open_state(file, path, platform) as state:
        budget = _budget(file, leads=state.leads)
        budget.require(state.federation)
        engine = Engine(
            path=path,
            file=file,
            state=state,
            enclave=state.start(evidence=platform.provider.kind),
            pool=Pool(asyncio.get_running_loop()),
            memory=Memory(budget.rows(state.federation)),
            tell=tell,
            require_room=budget.require,
        )
        if state.leads:
            engine.shards = Shards(file.enclave.shards, lost=engine.lose_shard)
            engine.shards.require_fit(engine.federation)
        status.engine = engine
        status.keep_token(state.folder)
        _stop_on_signals(engine.stop)
        with _metrics(file, status), ExitStack() as stack:
            if sockets is None:
                sockets = Path(stack.enter_context(TemporaryDirectory(prefix="ostraka-")))
            uploads = stack.enter_context(_uploads(file))
            downloads = stack.enter_context(_downloads(file))
            front = stack.enter_context(_front(file, tell, sockets, (uploads, downloads)))
            status.traffic = lambda: front.traffic
            start = partial(
                _start,
                engine,
                platform,
                status,
                front=front,
                uploads=uploads,
                downloads=downloads,
            )
            server = await start()
            try:
                port = front.listen(file.enclave.listen)
            except ConfigError:
                await server.stop(None)
                raise
            address = f"{file.enclave.listen.rpartition(':')[0]}:{port}"
            tell(
                events.ServiceStarted(
                    address=address,
                    evidence=platform.provider.kind,
                    code_id=platform.code_id.hex(),
                    sealing_key=platform.keys.name,
                    next_round=engine.published + 1,
                )
            )
            for notice in state.notices:
                tell(events.StorageNoticed(notice))
            engine.announce()
            rounds = asyncio.create_task(_all_rounds(engine))
            try:
                while not await _ended_first(server, rounds):
                    await server.stop(None)
                    server = await start()
                    tell(events.ServerRestarted())
                await rounds
                tell(events.Stopping(str(engine.phase)))
            finally:
                rounds.cancel()
                if engine.shards is not None:
                    engine.shards.end(finished=engine.phase is Phase.FINISHED)
                engine.pool.close()  # A worker's stream would last until it is cut off.
                front.stop_listening()
                await server.stop(_STOP_S)
                await front.drained()
                await asyncio.gather(rounds, return_exceptions=True)


def _budget(file: FederationFile, *, leads: bool = False) -> Budget:
    """What the machine has, and what of it the operator lets rows have."""
    given = file.enclave.memory_mib
    return Budget(
        spare(),
        None if given is None else given * _MIB,
        file.enclave.threads,
        file.enclave.shards,
        leads,
    )


def _uploads(file: FederationFile) -> Uploads:
    """Return what takes uploads. Strangers have as many turns as the enrolled."""
    limits = file.limits
    return Uploads(
        2 * limits.uploads,
        idle_s=limits.idle_s,
        readers=file.enclave.threads,
        tls=_tls(file),
    )


def _tickets(file: FederationFile, downloads: Downloads) -> Tickets:
    """Return what takes tiles at a shard, whose lead has as many turns."""
    limits = file.limits
    return Tickets(
        2 * limits.uploads,
        idle_s=limits.idle_s,
        readers=file.enclave.threads,
        tls=_tls(file),
        others=downloads.knows,
    )


def _downloads(file: FederationFile) -> Downloads:
    """Return what sends models."""
    limits = file.limits
    return Downloads(limits.uploads, idle_s=limits.idle_s, most_s=limits.upload_s, tls=_tls(file))


def _tls(file: FederationFile) -> ssl.SSLContext | None:
    """Return what shakes hands on lanes, with the same certificate as gRPC. Raises ConfigError."""
    if file.tls() is None or file.enclave.tls_certificate is None or file.enclave.tls_key is None:
        return None
    certificate, key = (
        file.folder / each for each in (file.enclave.tls_certificate, file.enclave.tls_key)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # A lane is not resumed, and nothing is sent over it.
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # and asks no terminal
    except OSError as unfit:
        raise ConfigError(
            f"{certificate} and {key} are no certificate with its key, as PEM without a password: "
            f"{unfit}"
        ) from None
    return context


def _front(
    file: FederationFile,
    tell: Callable[[Event], None],
    sockets: Path,
    lanes: Sequence[Lanes],
    *,
    foretold: Tickets | None = None,
) -> Front:
    """Return the door. Of an address that has too many connections it is told once a minute."""
    limits = file.limits
    once, some = Rate(1), Rate(_GOSSIP)

    def crowded(address: str) -> None:
        with suppress(TooMany):
            once.spend(address)
            some.spend("")
            tell(events.AddressCrowded(address, limits.connections))

    return Front(
        limits.connections,
        folder=sockets,
        idle_s=limits.idle_s,
        lanes=lanes,
        foretold=foretold,
        crowded=crowded,
    )


async def _start(
    engine: Engine,
    platform: Platform,
    status: Status,
    *,
    front: Front,
    uploads: Uploads,
    downloads: Downloads,
) -> grpc.aio.Server:
    """Start the server behind the door."""
    file, limits = engine.file, engine.file.limits
    relayed = max(limits.requests_per_minute, _RELAYED * len(file.clients))
    server = grpc.aio.server(options=_options(file), interceptors=[Punctual(limits.idle_s)])
    servicer = Servicer(
        engine=engine,
        provider=platform.provider,
        status=status,
        door=front,
        uploads=uploads,
        downloads=downloads,
        enrolled=_allowance(file, calls=_CALLS, rate=limits.requests_per_minute),
        strangers=_allowance(file, calls=_STRANGERS_CALLS, rate=relayed),
        gossip=Rate(limits.requests_per_minute),
    )
    add_EnclaveServicer_to_server(servicer, server)
    address = front.back_address()
    front.pass_on_to(address, _bind(server, file, address))
    await server.start()
    uploads.serve(servicer.take_upload)
    return server


def _allowance(file: FederationFile, *, calls: int, rate: int) -> Allowance:
    limits = file.limits
    return Allowance(
        calls=Share(calls),
        rate=Rate(rate),
        uploads=Turns(limits.uploads, turn_s=limits.idle_s, most_s=limits.upload_s),
        chains=Turns(limits.uploads, turn_s=limits.idle_s, most_s=limits.upload_s),
    )


@contextmanager
def _metrics(file: FederationFile, status: Status) -> Iterator[None]:
    """Serve metrics to Prometheus during the block, if the file asks for it."""
    if file.enclave.metrics is None:
        yield
        return
    host, _, port = file.enclave.metrics.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), status.registry)
    except OSError as taken:
        raise ConfigError(f"cannot listen on {file.enclave.metrics}: {taken}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bind(server: grpc.aio.Server, file: FederationFile, address: str) -> int:
    tls = file.tls()
    if tls is None:
        return server.add_insecure_port(address)
    key, certificate = tls
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    return server.add_secure_port(address, credentials)


def _options(file: FederationFile) -> list[tuple[str, int]]:
    """Return gRPC's settings. No message grows with the square of the clients: answers of workers
    come in pieces.

    The door limits connections. Calls are limited by caller: a peer that does not read its answer
    keeps its call open, and others must not have to wait for that.
    """
    limits = file.limits
    largest = max(limits.message_kib * _KIB, ANSWER_PIECE + _KIB)
    idle_ms = math.ceil(1000 * limits.idle_s)
    return [
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", LOOKAHEAD),
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.server_handshake_timeout_ms", idle_ms),
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIMEOUT_MS),
    ]


async def serve_shard(
    settings: Settings,
    platform: Platform,
    tell: Callable[[Event], None],
    *,
    sockets: Path | None = None,
) -> None:
    """Serve a lead as one of its shards, until it has finished or a signal asks to stop.

    sockets: as `serve` takes it.
    """
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    hardening.keep_little()
    file = federation_file.load(settings.path)
    charter = federation_file.load_charter(charter_path(settings.path))
    federation_file.require_signed(file, charter)
    files.make_folder(file.state)
    Spool.clean(file.state)
    budget = _budget(file)
    budget.require(charter.federation)
    stopping = asyncio.Event()
    _stop_on_signals(stopping.set)
    with closing(FolderLock(file.state)), ExitStack() as stack:
        if sockets is None:
            sockets = Path(stack.enter_context(TemporaryDirectory(prefix="ostraka-")))
        downloads = stack.enter_context(_downloads(file))
        tickets = stack.enter_context(_tickets(file, downloads))
        lanes = (tickets, downloads)
        front = stack.enter_context(_front(file, tell, sockets, lanes, foretold=tickets))
        shard = ShardService(
            settings,
            file,
            charter,
            platform=platform,
            tell=tell,
            tickets=tickets,
            downloads=downloads,
            memory=Memory(budget.rows(charter.federation)),
            threads=stack.enter_context(lend_threads(file.enclave.threads)),
        )
        server = grpc.aio.server(
            options=_options(file), interceptors=[Punctual(file.limits.idle_s)]
        )
        add_EnclaveServicer_to_server(ShardServicer(shard, front, platform), server)
        address = front.back_address()
        front.pass_on_to(address, _bind(server, file, address))
        await server.start()
        try:
            port = front.listen(file.enclave.listen)
            heard = f"{file.enclave.listen.rpartition(':')[0]}:{port}"
            await _join_again(shard, _advertised(settings.advertise, heard), stopping)
            tell(events.Stopping("finished" if not stopping.is_set() else "stopped"))
        finally:
            shard.pool.close()
            front.stop_listening()
            await server.stop(_STOP_S)
            await front.drained()


def _advertised(given: str | None, heard: str) -> str:
    """Where others are told to find a shard. Raises ConfigError."""
    if given is not None:
        require_address(given)
        return given
    if heard.rpartition(":")[0] in _ANYWHERE:
        raise ConfigError(
            f"this shard listens on {heard}, which is no address for others: say where clients and "
            "workers find it (--advertise HOST:PORT)"
        )
    return heard


async def _join_again(shard: ShardService, address: str, stopping: asyncio.Event) -> None:
    """Serve one stream to the lead after another."""
    backoff = Backoff()
    while not stopping.is_set():
        joining = asyncio.create_task(shard.join(address))
        waiting = asyncio.create_task(stopping.wait())
        started = time.monotonic()
        await asyncio.wait((joining, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not joining.done():
            joining.cancel()
        (ended,) = await asyncio.gather(joining, return_exceptions=True)
        if isinstance(ended, Finished) or stopping.is_set():
            return
        if isinstance(ended, ConfigError):
            raise ended
        if time.monotonic() - started > _STABLE_S:
            backoff.reset()
        pause = backoff.next()
        shard.tell(events.LeadLost(shard.settings.lead, _why(ended), round(pause, 2)))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stopping.wait()


def _why(ended: BaseException | None) -> str:
    if isinstance(ended, grpc.aio.AioRpcError):
        return f"{ended.code().name.lower()}: {ended.details()}"
    return str(ended) or type(ended).__name__


def _stop_on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError, ValueError):  # Outside of the main thread there are no signals.
            loop.add_signal_handler(number, stop)


async def _ended_first(server: grpc.aio.Server, rounds: "asyncio.Task[None]") -> bool:
    """Return whether the rounds have ended. Otherwise the server has ended by itself.

    gRPC's server for asyncio ends when a peer asks for a method whose name is not UTF-8. Clients
    and workers lose only their connections, and connect again.
    """
    serving = asyncio.create_task(server.wait_for_termination(_FOREVER_S))
    try:
        await asyncio.wait((rounds, serving), return_when=asyncio.FIRST_COMPLETED)
        return rounds.done()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _all_rounds(engine: Engine) -> None:
    """Run all rounds, and wait after the last one, so that every client can fetch its outcome."""
    await engine.run()
    if engine.phase is Phase.FINISHED:
        engine.tell(events.Finished(engine.published, engine.file.rounds.linger_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(engine.file.rounds.linger_s):
                await engine.stopping.wait()
