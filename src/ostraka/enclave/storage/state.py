"""The enclave's state on disk: its identity, its ledger and its models."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from ostraka import files
from ostraka.config import Federation
from ostraka.core.optimiser import ServerState
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.sealing import MARK_OF_0_1, Sealer
from ostraka.enclave.storage import models
from ostraka.enclave.storage.ledger import (
    Adopted,
    Founded,
    HandedOver,
    History,
    Ledger,
    Published,
    Record,
    Skipped,
    TakenOver,
)
from ostraka.enclave.storage.models import Models, Slices, State
from ostraka.enclave.storage.sealed_file import SealedFile
from ostraka.encoding import Digest, Key, decode, encode
from ostraka.errors import LocalProtocolError, MalformedMessage, OpenError, StateError
from ostraka.files import FolderLock
from ostraka.messages import Abandon, Certified, Charter, Receipt, first_model, vector_digest
from ostraka.protocol.enclave import Enclave, Pending


@dataclass(frozen=True)
class Estate:
    """All that a successor needs. seed: of the receipt key. state: the last one."""

    LABEL: ClassVar[bytes] = b"ostraka/estate/v2"

    seed: Key = field(repr=False)
    records: tuple[bytes, ...] = field(repr=False)
    state: bytes = field(repr=False)

    def record(self, origin: bytes) -> TakenOver:
        """The first record of the successor's ledger."""
        return TakenOver(origin, self.records)

    def verify(self, origin: bytes) -> History:
        """Return what the records add up to. Raises OpenError or MalformedMessage."""
        history = History()
        try:
            history.admit(self.record(origin))
        except LocalProtocolError as broken:
            raise MalformedMessage(f"the ledger is not whole: {broken}") from None
        history.verify()
        if Identity(self.seed).public != history.receipt_key:
            raise OpenError("identity")
        if models.content_digest(self.state) != history.state:
            raise OpenError("state")
        state = models.from_bytes(self.state)
        if isinstance(state, Slices) or history.head is None:
            return history
        if history.head.model != vector_digest(state.model):
            raise OpenError("model")
        return history


@dataclass(frozen=True)
class _Held:
    """A pending outcome on disk. state: digest of the model and the moments after it.

    padding: the file has the same size for every outcome that these members could have.
    """

    LABEL: ClassVar[bytes] = b"ostraka/held/v1"

    pending: Pending = field(repr=False)
    state: Digest
    padding: bytes = field(repr=False)


_LEDGER = "ledger"
_SEED_BYTES = 32
_MEMBER_BYTES = 512  # of a receipt and of the cohort's tree, for each client, beside its names
_HELD_BYTES = 8192  # of all else


class EnclaveState:
    """The state in one folder, which one process opens at a time.

    A new folder is `fresh` until a federation is founded in it.
    """

    def __init__(self, folder: Path, sealer: Sealer, lock: FolderLock, keep: int) -> None:
        self.folder = folder
        self.sealer = sealer
        self.migration = SealedFile(folder / "migration.sealed", sealer)
        self.notices: list[str] = []
        self._lock: FolderLock | None = lock
        self._seed = SealedFile(folder / "identity.sealed", sealer)
        self._ledger = Ledger(folder / _LEDGER, sealer)
        self._models = Models(folder, sealer, keep=keep)
        self._history = History()
        self._held = SealedFile(folder / "pending.sealed", sealer)
        self._identity: Identity | None = None
        self._last: State | None = None
        self.pending: tuple[Pending, State] | None = None  # waits to be confirmed
        self._pending_digest = b""  # of its state, as it is on disk

    @classmethod
    def open(
        cls, folder: Path, sealer: Sealer, *, keep: int = models.DEFAULT_KEEP
    ) -> "EnclaveState":
        """Open a folder. Raises StateError if it is in use, or cannot be used by this enclave."""
        files.make_folder(folder)
        lock = FolderLock(folder)
        try:
            state = cls(folder, sealer, lock, keep)
            state._load()
        except BaseException:
            lock.close()
            raise
        if not lock.effective:
            state.notices.append("this system has no file locks: start one process at a time")
        return state

    def __enter__(self) -> "EnclaveState":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EnclaveState({str(self.folder)!r}, round {self._history.number}, <secret>)"

    def close(self) -> None:
        """Release the folder for another process. Nothing can be added after this."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def fresh(self) -> bool:
        return self._history.receipt_key is None

    @property
    def receipt_key(self) -> bytes:
        """The key under which this enclave signs."""
        return self._founded()[0].public

    @property
    def federation(self) -> Federation:
        """The newest revision that was adopted."""
        self._founded()
        return self._history.federation

    @property
    def electors(self) -> Federation:
        """The revision whose voters confirm the next number."""
        self._founded()
        return self._history.electors

    @property
    def charters(self) -> tuple[Charter, ...]:
        """All revisions, oldest first."""
        return tuple(self._history.charters)

    @property
    def head(self) -> Receipt | Abandon | None:
        return self._history.head

    @property
    def last_state(self) -> State:
        """The model and the optimiser's moments after the last published round; or its slices."""
        return self._founded()[1]

    @property
    def leads(self) -> bool:
        """Whether shards have the model."""
        return isinstance(self.last_state, Slices)

    @property
    def identity(self) -> Identity:
        """What this enclave signs with."""
        return self._founded()[0]

    @property
    def handed_over_from(self) -> bytes | None:
        """The enclave that this state came from, until a receipt was published after that."""
        return self._history.origin

    @property
    def handed_over_to(self) -> bytes | None:
        """The enclave that goes on in place of this one."""
        ended = self._history.handed_over
        return None if ended is None else ended.to

    def published(self, first: int = 1) -> tuple[Certified, ...]:
        """Return the certified receipts from round `first` on."""
        before = self._history.abandon.number if self._history.abandon else 0
        return tuple(self._history.published[max(first - before, 1) - 1 :])

    @property
    def abandon(self) -> Abandon | None:
        """What the first receipt of this enclave follows, if that is not the beginning."""
        return self._history.abandon

    def require_fresh(self) -> None:
        """Raises StateError if the folder holds an enclave's state already."""
        self._require_open()
        if not self.fresh:
            raise StateError(self.folder, "holds an enclave's state already: use another folder")

    def found(
        self,
        charter: Charter,
        state: State,
        entropy: Entropy = os.urandom,
        *,
        abandon: Abandon | None = None,
    ) -> None:
        """Begin a federation, under a new identity. Raises OpenError or StateError.

        abandon: to go on for an enclave that was lost, after the number that it gives up.
        """
        self.require_fresh()
        if self.migration.exists():
            raise StateError(
                self.migration.path,
                "a hand-over to this enclave is under way: finish it with `ostraka enclave migrate "
                "import`, or delete the file to begin a new federation",
            )
        check_signature(charter, charter.federation.authority)
        if abandon is not None:
            check_signature(abandon, charter.federation.authority)
        _require_first(charter.federation, state, abandon)
        # Always a new one, and never read back: a host could lay another ledger's seed here, found
        # a ledger of its own over it, and have that one hand the seed to code of its choice.
        seed = entropy(_SEED_BYTES)
        identity, content = Identity(seed), models.to_bytes(state)
        record = Founded(identity.public, charter, models.content_digest(content), abandon)
        self._check(record)
        self._seed.write(seed)
        self._models.save(0, content)
        self._append(record)
        self._identity, self._last = identity, state

    def inherit(self, estate: Estate, origin: bytes) -> None:
        """Go on where the enclave of code id `origin` stopped. Raises StateError, OpenError."""
        self.require_fresh()
        history = estate.verify(origin)
        self._models.save(history.stored, estate.state)
        self._seed.write(estate.seed)
        self._append(estate.record(origin))
        self._identity = Identity(estate.seed)
        self._last = models.from_bytes(estate.state)
        self.migration.discard()

    def start(self, *, evidence: str, entropy: Entropy = os.urandom) -> Enclave:
        """Return the enclave itself. Raises StateError if another one has taken its place."""
        identity, state = self._founded()
        if self.handed_over_to is not None:
            raise StateError(
                self.folder,
                f"was handed over to the enclave {self.handed_over_to.hex()} and is retired: "
                "start that one. Two that sign with one key would be a fork",
            )
        return Enclave(
            self._history.federation,
            identity,
            head=self.head,
            electors=self._history.electors,
            state=None if isinstance(state, Slices) else state,
            leads=isinstance(state, Slices),
            evidence=evidence,
            cautions=self._cautions(),
            entropy=entropy,
        )

    def _cautions(self) -> tuple[str, ...]:
        if self.handed_over_from is None:
            return ()
        return (f"state was handed over from the enclave {self.handed_over_from.hex()}",)

    def hold(self, pending: Pending, state: State) -> None:
        """Make a pending outcome durable. Only after this may anybody be asked to confirm it.

        It is held once: of a number that is asked about twice, one outcome could be released by
        this process, and the other by one that was started from the older file. Raises OSError
        where the disk fails; nothing is held then, and the same outcome can be again.
        """
        receipt = pending.receipt
        check_signature(receipt, self.receipt_key)
        if isinstance(state, ServerState) and receipt.model != vector_digest(state.model):
            raise LocalProtocolError("this model is not the one of the receipt")
        if self.pending is not None:
            raise LocalProtocolError(f"an outcome of round {receipt.number} is held already")
        self._check(Published(Certified(receipt, None), bytes(32)))
        content = models.to_bytes(state)
        self._models.save(receipt.number, content)
        held = models.content_digest(content)
        self._held.write(encode(self._padded(pending, held)))
        self.pending, self._pending_digest = (pending, state), held

    def publish(self, certified: Certified) -> None:
        """Make the pending outcome the next of the chain, durably. Only then may it be told.

        Raises OSError where the disk fails; it stays pending then.
        """
        pending, state = self._require_pending()
        if certified.receipt != pending.receipt:
            raise LocalProtocolError("this receipt is not the one that is pending")
        number = certified.receipt.number
        self._append(Published(certified, self._pending_digest))
        self._last, self.pending = state, None
        self._held.discard()
        self._models.prune(number)

    def _require_pending(self) -> tuple[Pending, State]:
        if self.pending is None:
            raise LocalProtocolError("no outcome is pending")
        return self.pending

    def _padded(self, pending: Pending, state: bytes) -> _Held:
        names = sum(len(member.name.encode()) for member in self.federation.clients)
        room = _HELD_BYTES + _MEMBER_BYTES * len(self.federation.clients) + 2 * names
        return _Held(pending, state, bytes(max(0, room - len(encode(pending)))))

    def adopt(self, charter: Charter) -> None:
        """Adopt a revision from the next round on. Raises OpenError or LocalProtocolError."""
        check_signature(charter, self.federation.authority)
        self._append(Adopted(charter))

    def skip(self, number: int, reason: str) -> None:
        """Record that the open round was given up."""
        self._append(Skipped(number, reason))

    def hand_over(self, to: bytes, key: bytes, seal: Callable[[Estate], bytes]) -> bytes:
        """Retire in favour of one other enclave, and return what `seal` makes of the estate.

        The same successor may ask again, since a process can die before its bundle is stored. Any
        other one is refused with StateError. If `seal` fails, nothing has happened.
        """
        self._founded()
        if self.pending is not None:
            raise StateError(
                self.folder,
                f"holds an outcome of round {self.pending[0].receipt.number} that waits to be "
                "confirmed: start this enclave, and hand over when it is published",
            )
        ended, record = self._history.handed_over, HandedOver(to, key)
        if ended is not None and ended != record:
            raise StateError(
                self.folder,
                f"was handed over to the enclave {ended.to.hex()}, and to its one request: "
                "no other can have it",
            )
        sealed = seal(self._estate(record))
        if ended is None:
            self._append(record)
        return sealed

    def _estate(self, end: HandedOver) -> Estate:
        # Read anew: there may be one more record, whose append failed after it was written.
        written = Ledger(self.folder / _LEDGER, self.sealer).read()[: len(self._ledger)]
        so_far = [record for record in written if record != end]
        records = tuple(encode(record) for record in (*so_far, end))
        return Estate(self._read_seed(), records, models.to_bytes(self.last_state))

    def _load(self) -> None:
        self._require_this_version()
        removed = files.remove_partial(self.folder) + files.remove_partial(self.folder / _LEDGER)
        if removed:
            self.notices.append(f"{removed} files that were never finished are removed")
        self._read_history()
        if self.fresh:
            self._require_no_models()
            return
        self._identity = Identity(self._read_seed())
        self._last = self._models.load(self._history.stored, self._history.state or b"")
        self._resume()
        self.migration.discard()  # A hand-over that was under way is complete.

    def _resume(self) -> None:
        """Go on with an outcome that was pending when the process ended."""
        if not self._held.exists():
            return
        try:
            held = decode(_Held, self._held.read())
        except MalformedMessage as unknown:
            raise StateError(
                self._held.path, f"is of another version ({unknown}): use the release that wrote it"
            ) from None
        number = held.pending.receipt.number
        if number <= self._history.number:
            self._held.discard()  # It was published, and the process ended just then.
            return
        try:
            self._check(Published(Certified(held.pending.receipt, None), held.state))
        except LocalProtocolError as misplaced:
            raise StateError(
                self._held.path,
                f"is of another time than the ledger ({misplaced}): bring back the whole folder as "
                "it was",
            ) from None
        self.pending = held.pending, self._models.load(number, held.state)
        self._pending_digest = held.state

    def _require_this_version(self) -> None:
        """Raises StateError for what version 0.1 has sealed, before anything is read or changed."""
        for path in self.folder.rglob("*.sealed"):
            with path.open("rb") as file:
                if file.read(len(MARK_OF_0_1)) == MARK_OF_0_1:
                    raise StateError(
                        self.folder,
                        "holds the state of version 0.1, which this version cannot read. Get the "
                        "last model with version 0.1, and begin a new federation from it, with "
                        "an empty folder for state (docs/operations.md)",
                    )

    def _read_seed(self) -> bytes:
        """Return the seed, compared with the ledger: the host can exchange the file at any time."""
        seed = self._seed.read()
        if Identity(seed).public != self._history.receipt_key:
            raise StateError(self._seed.path, "is the identity of another ledger than this one")
        return seed

    def _read_history(self) -> None:
        records = self._ledger.read()
        try:
            for record in records:
                self._history.admit(record)
        except (LocalProtocolError, MalformedMessage) as broken:
            raise StateError(
                self.folder / _LEDGER, f"{broken}: use the release that wrote it"
            ) from None

    def _require_no_models(self) -> None:
        """Raises StateError if there are models of rounds, and no ledger that names them."""
        if any(self._models.numbers()) and not self.migration.exists():
            raise StateError(
                self.folder / _LEDGER,
                "is missing, but models are there: bring back the whole folder as it was",
            )

    def _founded(self) -> tuple[Identity, State]:
        if self._identity is None or self._last is None:
            raise LocalProtocolError("nothing was founded in this folder yet")
        return self._identity, self._last

    def _append(self, record: Record) -> None:
        self._check(record)
        self._ledger.append(record)
        self._history.admit(record)

    def _check(self, record: Record) -> None:
        self._require_open()
        self._history.check(record)

    def _require_open(self) -> None:
        if self._lock is None:
            raise LocalProtocolError("this state is closed")


def _require_first(federation: Federation, state: State, abandon: Abandon | None) -> None:
    if isinstance(state, Slices):
        return  # The lead compares what its shards have, whenever one of them joins.
    d = federation.terms.dimension
    if {state.model.shape, *(moment.shape for moment in state.moments)} != {(d,)}:
        raise LocalProtocolError(f"the first model must have {d} values, as the federation says")
    promised = abandon.model if abandon else first_model(federation)
    if vector_digest(state.model) != promised:
        raise LocalProtocolError("the first model is not the one that the authority has signed")
