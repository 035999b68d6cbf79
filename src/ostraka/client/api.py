"""The class that training code uses.

with ostraka.Client("host:7420", name="hospital-a", key="keys/hospital-a.key",
                    policy="policy.toml") as client:
    while not (model := client.fetch()).finished:
        client.submit(train(model.arrays))
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType

from ostraka.arrays import Float32
from ostraka.client import upload
from ostraka.client.attesting import Verifier
from ostraka.client.connection import Connection, Patience, Resting
from ostraka.client.events import Event, Report
from ostraka.client.kept import KeptFiles
from ostraka.client.memory import MemoryFile
from ostraka.client.outgoing import Outgoing
from ostraka.client.results import Model, Outcome, Update, flatten
from ostraka.client.session import Session, Shelf
from ostraka.client.voting import Voter
from ostraka.config import Federation
from ostraka.core.metrics import Values
from ostraka.core.uploads import Encoded
from ostraka.errors import ConfigError, LocalProtocolError, ServiceError
from ostraka.files import read_identity, read_policy
from ostraka.messages import Receipt
from ostraka.protocol.client import Joined

DEFAULT_RESENDS = 8

_FINISHED = "the federation has finished: there is no round to submit to"


class Client:
    """A client of a federation: fetches the global model, and submits updates to it.

    address: HOST:PORT of the enclave's service. name, key: who this is, as it is enrolled. policy:
    what is accepted as an enclave. memory: what is kept between runs, by default beside the key,
    one for each federation: who loses it needs a new key. Beside it are the client's
    momentum and residuals.
    tls_ca: certificates that vouch for the service, if it speaks TLS. unsafe_simulation: accept an
    enclave that no TEE protects, if the policy does, too. timeout: seconds for one call, None to
    wait as long as it takes. resends: how often one update goes to a round that was opened again,
    after it had gone out whole. on_event: called with what is waited for, in the same thread;
    unless given, that is logged, as "ostraka.client".

    It is for one thread at a time. Between calls it has no thread, except in the block of
    `confirming`, and its connection for some seconds, or until the process forks.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        key: str | Path,
        policy: str | Path,
        memory: str | Path | None = None,
        tls_ca: str | Path | None = None,
        unsafe_simulation: bool = False,
        timeout: float | None = None,
        resends: int = DEFAULT_RESENDS,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        key, policy = Path(key), Path(policy)
        self._address = address
        self._who = Verifier(
            name=name,
            identity=read_identity(key),
            policy=read_policy(policy),
            policy_file=policy,
            unsafe_simulation=unsafe_simulation,
        )
        federation = self._who.policy.federation.id
        self._file = (
            MemoryFile(Path(memory), name, federation)
            if memory
            else MemoryFile.beside(key, name, federation)
        )
        self._file.load()  # A memory that is damaged is told of now, not after hours of training.
        self._tls_ca = _readable(Path(tls_ca)) if tls_ca else None
        self._timeout = timeout
        self._resends = resends
        self._tell = on_event or Report()
        self._shelf = Shelf()
        self._begun: set[bytes] = set()
        self._joined: Joined | None = None
        self._out: tuple[Federation, Outgoing] | None = None
        self._finished = False
        self._closed = False
        self._resting = Resting()
        self._voter: Voter | None = None

    def __repr__(self) -> str:
        return f"Client({self._address!r}, name={self._who.name!r})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing can be done with this client any more."""
        self._closed = True
        self._joined = None
        self._shelf = Shelf()
        self._resting.end()

    def fetch(self) -> Model:
        """The model of the round that is open, from an enclave that has proved itself.

        Waits for a round to open. Raises AttestationRefused if the enclave is not trusted,
        ReceiptRefused or Fork if its chain cannot be followed, ServiceError if it cannot be
        reached or does not serve this client, and StateError if its own files are out of order.
        """
        with self._session() as session:
            self._joined = None
            found = session.join_with_model()
            if found is None:
                self._finished = True
                return _last_model(session)
            joined, vector = found
        self._way_out(joined).require_usable(joined.offer.number)
        self._joined = joined
        return Model.before(joined, vector)

    def submit(self, delta: Update, metrics: Values | None = None) -> Outcome:
        """Send an update for the round of the model fetched last, and wait for the receipt.

        delta: the difference from that model, as arrays by name or as one vector (d,), without
        momentum: what goes out is made from it by the federation's client momentum and format of
        uploads. metrics: what this client reports, by name: loss, accuracy, examples. It is sealed
        with the update if the federation publishes the mean of it, and stays here otherwise.
        Raises as `fetch` does, ConfigError for an update of another form or beyond the
        range of that format and for what is no metric, and UpdateRejected if the enclave refuses
        it. After a ServiceError it can be called again with the same update.
        """
        joined = self._require_joined()
        joined.client.federation.terms.asked.write(metrics)  # refuses what cannot be reported
        update = flatten(delta, joined.client.federation.terms.manifest)
        with self._session() as session:
            outcome = upload.submit(
                session,
                joined,
                update,
                outgoing=self._outgoing,
                resends=self._resends,
                metrics=metrics,
            )
        self._joined = None
        self._begun.clear()
        return outcome

    def _outgoing(self, joined: Joined, update: Float32) -> Encoded:
        """What goes out to this round in place of an update (d,)."""
        return self._way_out(joined).apply(update, joined.offer.number)

    def _way_out(self, joined: Joined) -> Outgoing:
        """Made once for each revision: it looks for what earlier ones have left behind."""
        federation = joined.client.federation
        if self._out is None or self._out[0] != federation:
            keeping = partial(KeptFiles.beside, self._file, federation)
            self._out = federation, Outgoing.of(federation, keeping)
        return self._out[1]

    @contextmanager
    def confirming(self) -> Iterator[None]:
        """Confirm outcomes in a thread while the block lasts, between calls of this client.

        `fetch` and `submit` confirm by themselves. A client that trains for hours, or that is left
        out of some rounds, keeps others waiting if it is needed to confirm theirs.
        """
        self._voter = Voter(self._address, self._who, self._file, self._tls_ca, self._tell)
        self._voter.start()
        try:
            yield
        finally:
            self._voter.stop()
            self._voter = None

    @contextmanager
    def _session(self) -> Iterator[Session]:
        if self._closed:
            raise LocalProtocolError("this client was closed")
        with self._alone(), self._connection() as connection:
            session = Session(self._who, connection, self._file, self._shelf, self._begun)
            with session.proving():
                yield session

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """The connection of the call before this one, or a new one. It rests if all goes well."""
        patience = Patience(self._timeout)
        connection = self._resting.take()
        if connection is None:
            connection = Connection(
                self._address,
                tls_ca=self._tls_ca,
                patience=patience,
                tell=self._tell,
                greeting=self._who.greeting,
            )
        connection.patience = patience
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._resting.rest(connection)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let the thread that confirms rest: a call confirms by itself."""
        if self._voter is None:
            yield
            return
        self._voter.stop()
        try:
            yield
        finally:
            self._voter.start()

    def _require_joined(self) -> Joined:
        if self._joined is not None:
            return self._joined
        if self._finished:
            raise ServiceError(_FINISHED)
        raise LocalProtocolError(
            "fetch a model first: an update is for the round of the model that it was made from"
        )


def _last_model(session: Session) -> Model:
    """The result of a federation whose rounds are all over."""
    memory = session.memory
    if memory is None or not isinstance(memory.last, Receipt):
        raise ServiceError(
            "the federation has finished, and this client holds no receipt of it: nothing proves "
            "to it which model is the last"
        )
    federation = memory.charter.federation
    vector = session.model(memory.last.model, federation)
    return Model.last(memory.last, vector, federation.terms.manifest)


def _readable(path: Path) -> Path:
    """Raises ConfigError now, and not when the first connection is made."""
    try:
        path.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None
    return path
