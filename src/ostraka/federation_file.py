"""federation.toml: a federation's terms and roster, and how its enclave is run.

The terms and the roster make up the `Federation`, which the authority signs as a charter and to
which evidence is bound. The rest (deadlines, storage, limits, addresses) is the operator's own: it
may change without a new revision. So may its observers, who see the status and nothing else.
"""

import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from ostraka import files, settings
from ostraka.arrays import Float32
from ostraka.attestation import policy_file
from ostraka.config import (
    DEFAULT_MOMENTUM,
    MAX_SHARD_POLICY,
    Federation,
    Manifest,
    Member,
    Terms,
    default_tile,
)
from ostraka.core import leakage, rules, uploads
from ostraka.core.metrics import DEFAULT_EXAMPLES, DEFAULT_LOSS, ask
from ostraka.core.optimiser import FEDAVG, Optimiser
from ostraka.crypto.aead import TAG_BYTES
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, AnyMessage, Digest, Id, Key, decode, encode, pack
from ostraka.errors import ConfigError, MalformedMessage
from ostraka.files import read_text
from ostraka.messages import Abandon, Charter, vector_digest
from ostraka.model_file import read_model
from ostraka.settings import Document

_CHARTER_OF_0_1 = pack(b"ostraka/charter/v1")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
_LONGEST_NAME = 64
_MIB = 2**20
_YEAR = 366 * 24 * 3600
_MANY = 2**31 - 1
_MOST_SHARDS = 1024


@dataclass(frozen=True)
class About:
    """[federation]: what it is called, and who decides about it.

    name: for people and logs. id: 32 random bytes, drawn once, which every policy pins. revision:
    raise it by one with every change of the terms or the roster. authority: the public key that
    signs. successors: which code the enclave may hand its sealed state; `ostraka enclave migrate
    request` prints each. expires: seconds since 1970 after which clients join no round under this
    revision; None for never. shard_policy: the file with what shards have to prove, whose text is
    signed; absent if the federation has none.
    """

    name: str
    authority: Key
    id: Id
    revision: int = 1
    successors: tuple[Digest, ...] = ()
    expires: int | None = None
    shard_policy: str | None = None

    def __post_init__(self) -> None:
        if not (1 <= len(self.name) <= _LONGEST_NAME and self.name.isprintable()):
            raise ConfigError(f"name is 1 to {_LONGEST_NAME} printable characters")
        _require("revision", self.revision, 1, _MANY)
        if self.expires is not None:
            _require("expires", self.expires, 1, 2**62)


@dataclass(frozen=True)
class Model:
    """[model]: what is trained. Just one of the two.

    initial: a safetensors file with the first model. dimension: or this many values, all zero.
    """

    initial: str | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        if (self.initial is None) == (self.dimension is None):
            raise ConfigError("[model] has either initial, a safetensors file, or dimension")


@dataclass(frozen=True)
class TermsTable:
    """[terms]: how updates are chosen and averaged. See `config.Terms` for each.

    f: how many Byzantine clients are tolerated. rule: how updates are weighed, by any name that
    `ostraka rules` shows. pre: what comes before the rule; None for what usually does. tile: how
    many values are sealed at a time; None for the largest that suits the number of clients, at most
    the default. What lies between pre and client_momentum are options of both (`rules.Options`).
    """

    f: int
    rule: str = rules.DEFAULT
    pre: tuple[str, ...] | None = None
    k: int | None = None
    neighbours: int | None = None
    root: str = ""
    bucket: int = 2
    radius: float | None = None
    centre: str = "last"
    iterations: int | None = None
    smoothing: float | None = None
    beta: float | None = None
    client_momentum: float = DEFAULT_MOMENTUM
    masking: str = "exact"
    distances: str = "workers"
    workers: int = 2
    sketch: int | None = None
    verify: bool = True
    clip_norm: float | None = None
    leakage_bits: float = leakage.DEFAULT_BITS
    precision: float = 1e-3
    tile: int | None = None
    disclose_selection: bool = False
    disclose_values: bool = False
    confirm: str = "clients"
    witness_f: int = 0
    upload: str = uploads.DEFAULT
    report_metrics: tuple[str, ...] = ()
    most_loss: float = DEFAULT_LOSS
    most_examples: float = DEFAULT_EXAMPLES

    def __post_init__(self) -> None:
        _ = self.composition, uploads.find(self.upload)  # refuses what cannot work
        ask(self.report_metrics, loss=self.most_loss, examples=self.most_examples)  # the same
        _require("f", self.f, 0, _MANY)
        _require("witness_f", self.witness_f, 0, _MANY)
        _require("leakage_bits", self.leakage_bits, 1e-30, 1e30)
        _require("precision", self.precision, 1e-30, 1)

    @cached_property
    def composition(self) -> rules.Composition:
        """The rule, what comes before it, and their options."""
        options = {each.name: getattr(self, each.name) for each in fields(rules.Options)}
        pre = rules.asked_pre(self.rule, self.pre)
        return rules.compose(self.rule, pre, rules.Options(**options))


@dataclass(frozen=True)
class Rounds:
    """[rounds]: when a round opens, closes and is given up.

    count: how many to run. quorum: updates without which a round does not close, None for the least
    that the rule stands on.
    deadline_s: seconds in which clients upload. grace_s: seconds for the rest once the quorum is
    there, None for as long as the deadline is. extensions: how often the deadline is extended while
    the quorum is missed; then the round is skipped. measure_s: seconds in which the workers answer,
    in one attempt. linger_s: seconds to stay after the last round, for clients to fetch it.
    """

    count: int = 10
    quorum: int | None = None
    deadline_s: float = 600.0
    grace_s: float | None = None
    extensions: int = 2
    measure_s: float = 120.0
    linger_s: float = 60.0

    def __post_init__(self) -> None:
        _require("count", self.count, 1, _MANY)
        _require("deadline_s", self.deadline_s, 0.001, _YEAR)
        if self.grace_s is not None:
            _require("grace_s", self.grace_s, 0, _YEAR)
        _require("extensions", self.extensions, 0, 1000)
        _require("measure_s", self.measure_s, 0.001, _YEAR)
        _require("linger_s", self.linger_s, 0, _YEAR)


@dataclass(frozen=True)
class Storage:
    """[storage]: what the enclave keeps on disk.

    folder: its own, for sealed state and the spool. spool_mib: the most that sealed updates
    take. keep_models: how many past models stay.
    """

    folder: str = "state"
    spool_mib: int = 4096
    keep_models: int = 3

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("folder cannot be empty")
        _require("spool_mib", self.spool_mib, 1, _MANY)
        _require("keep_models", self.keep_models, 1, _MANY)


@dataclass(frozen=True)
class Limits:
    """[limits]: so that no peer can starve the others.

    connections: of strangers, open at a time; those of enrolled parties are not counted. uploads:
    clients that send at a time; others wait. message_kib: the largest single message; tiles are no
    messages. idle_s: a silent connection is closed after this, and a lane whose next tile takes
    longer. upload_s: the time for one client's upload. requests_per_minute: from one peer.
    """

    connections: int = 1024
    uploads: int = 64
    message_kib: int = 4096
    idle_s: float = 60.0
    upload_s: float = 600.0
    requests_per_minute: int = 600

    def __post_init__(self) -> None:
        _require("connections", self.connections, 1, 2**20)
        _require("uploads", self.uploads, 1, 2**20)
        _require("message_kib", self.message_kib, 8, 2**20)
        _require("idle_s", self.idle_s, 0.001, _YEAR)
        _require("upload_s", self.upload_s, 0.001, _YEAR)
        _require("requests_per_minute", self.requests_per_minute, 1, _MANY)


@dataclass(frozen=True)
class Enclave:
    """[enclave]: where it listens.

    listen: for clients and workers, host:port. metrics: for Prometheus, host:port or absent.
    threads: that mask and sum updates. memory_mib: how much memory opened updates may take, half of
    what the machine has to spare unless given; others are read again from the spool.
    tls_certificate, tls_key: PEM files, for TLS on top of what is sealed anyway; both or neither.
    shards: among how many other machines the values of updates are divided; 1 for none. Their
    policy is `federation.shard_policy`.
    """

    listen: str = "127.0.0.1:7420"
    metrics: str | None = None
    threads: int = 2
    memory_mib: int | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        for name, address in (("listen", self.listen), ("metrics", self.metrics)):
            match = _ADDRESS.fullmatch(address or "localhost:0")
            if match is None or int(match[1]) >= 2**16:
                raise ConfigError(f'{name} is host:port, such as "127.0.0.1:7420"; got {address!r}')
        _require("threads", self.threads, 1, 256)
        _require("shards", self.shards, 1, _MOST_SHARDS)
        if self.memory_mib is not None:
            _require("memory_mib", self.memory_mib, 0, _MANY)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key go together")


@dataclass(frozen=True)
class Enrolled:
    """[[client]], [[worker]], [[witness]] or [[observer]]: a party that is let in.

    name: letters, digits, dots, underscores and hyphens. key: its Ed25519 public key, which
    `enrol` prints. revoked: why it takes no part any more. Its key may never return.
    """

    name: str
    key: Key
    revoked: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"name is 1 to {_LONGEST_NAME} letters, digits, dots, underscores and hyphens; "
                f"got {self.name[:80]!r}"
            )


@dataclass(frozen=True)
class _Layout:
    """The file's tables."""

    federation: About
    model: Model
    terms: TermsTable
    rounds: Rounds = field(default_factory=Rounds)
    optimiser: Optimiser = FEDAVG
    storage: Storage = field(default_factory=Storage)
    limits: Limits = field(default_factory=Limits)
    enclave: Enclave = field(default_factory=Enclave)
    client: tuple[Enrolled, ...] = ()
    worker: tuple[Enrolled, ...] = ()
    witness: tuple[Enrolled, ...] = ()
    observer: tuple[Enrolled, ...] = ()


@dataclass(frozen=True)
class FederationFile:
    """A federation.toml that was read and found valid. Its paths are relative to its folder.

    initial: SHA-256 of the first model as it was then; empty if there is no file of it.
    shard_policy: the text of the file that [federation] names; empty if it names none.
    """

    path: Path
    document: Document = field(repr=False, compare=False)
    about: About
    model: Model
    manifest: Manifest
    initial: bytes
    terms: TermsTable
    rounds: Rounds
    optimiser: Optimiser
    storage: Storage
    limits: Limits
    enclave: Enclave
    clients: tuple[Enrolled, ...]
    workers: tuple[Enrolled, ...]
    witnesses: tuple[Enrolled, ...]
    observers: tuple[Member, ...] = ()
    shard_policy: str = ""

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def state(self) -> Path:
        """The enclave's own folder."""
        return self.folder / self.storage.folder

    @property
    def quorum(self) -> int:
        chosen = self.rounds.quorum
        return self.terms.composition.least(self.terms.f) if chosen is None else chosen

    def federation(self, signed: Federation | None = None) -> Federation:
        """What the authority signs, and what evidence is bound to.

        signed: what may be this very federation. The tile is then as it was chosen there, unless
        the file gives one: another release may choose another.
        """
        clients, workers = _active(self.clients), _active(self.workers)
        everyone = self.clients + self.workers + self.witnesses
        return Federation(
            terms=self._signed_terms(len(clients), signed),
            clients=clients,
            workers=workers,
            authority=self.about.authority,
            id=self.about.id,
            revision=self.about.revision,
            revoked=tuple(_member(each) for each in everyone if each.revoked is not None),
            successors=self.about.successors,
            initial=self.initial,
            witnesses=_active(self.witnesses),
            expires=self.about.expires,
            shard_policy=self.shard_policy,
        )

    def _tile(self, clients: int, signed: Federation | None) -> int:
        if self.terms.tile is not None:
            return self.terms.tile
        return signed.terms.tile if signed else default_tile(self.manifest.dimension)

    def _signed_terms(self, clients: int, signed: Federation | None) -> Terms:
        terms, composition = self.terms, self.terms.composition
        return Terms(
            manifest=self.manifest,
            f=terms.f,
            masking=terms.masking,
            rule=composition.name,
            pre=composition.pre,
            options=composition.options,
            client_momentum=terms.client_momentum,
            clip_norm=terms.clip_norm,
            distances=terms.distances,
            workers=terms.workers,
            sketch=terms.sketch,
            verify=terms.verify,
            leakage_bits=terms.leakage_bits,
            precision=terms.precision,
            tile=self._tile(clients, signed),
            disclose_selection=terms.disclose_selection,
            disclose_values=terms.disclose_values,
            optimiser=self.optimiser,
            confirm=terms.confirm,
            witness_f=terms.witness_f,
            upload=terms.upload,
            report_metrics=terms.report_metrics,
            most_loss=terms.most_loss,
            most_examples=terms.most_examples,
        )

    def tls(self) -> tuple[bytes, bytes] | None:
        """The key and the certificate chain, as PEM. Raises ConfigError."""
        if self.enclave.tls_key is None or self.enclave.tls_certificate is None:
            return None
        certificate = self.folder / self.enclave.tls_certificate
        try:
            chain = certificate.read_bytes()
        except OSError as failed:
            raise ConfigError(f"{certificate}: {failed.strerror}") from None
        return files.read_private_bytes(self.folder / self.enclave.tls_key), chain

    def initial_model(self) -> tuple[Manifest, Float32]:
        """The first global model (d,). Raises ConfigError if its file has changed since."""
        if self.model.initial is None:
            return self.manifest, np.zeros(self.manifest.dimension, "<f4")
        manifest, vector = read_model(self.folder / self.model.initial)
        if (manifest, vector_digest(vector)) != (self.manifest, self.initial):
            raise ConfigError(f"{self.model.initial} is another model than when it was first read")
        return manifest, vector


def load(path: Path) -> FederationFile:
    """Read a federation.toml. Raises ConfigError with the file and the line at fault."""
    document = settings.parse(read_text(path), str(path))
    if "rules" in document.values:
        raise document.error(
            "rules",
            "version 0.1's [rules] is [terms] now: rename the table, and sign the file again "
            f"(`ostraka sign {path} --key KEY`)",
        )
    about = document.values.get("federation")
    if isinstance(about, dict) and "id" not in about:
        raise document.error(
            "federation",
            "federation.id is missing: 32 random bytes in hex, drawn once (`openssl rand -hex 32`) "
            "and never changed; every policy pins it",
        )
    terms = document.values.get("terms")
    if isinstance(terms, dict) and "k" in terms and "rule" not in terms:
        usual = rules.compose(rules.DEFAULT, rules.DEFAULT_PRE)
        raise document.error(
            "terms.k",
            f'k belongs to multi-krum, the only rule of version 0.1: write rule = "{rules.PAPER}", '
            f"or leave k out for the rule that is usual now, {usual}",
        )
    layout = document.read(_Layout)
    _require_distinct(document, layout)
    with document.blame("model.initial" if layout.model.initial else "model.dimension"):
        manifest, initial = _first_model(layout.model, path.parent)
    file = FederationFile(
        path=path,
        document=document,
        about=layout.federation,
        model=layout.model,
        manifest=manifest,
        initial=initial,
        terms=layout.terms,
        rounds=layout.rounds,
        optimiser=layout.optimiser,
        storage=layout.storage,
        limits=layout.limits,
        enclave=layout.enclave,
        clients=layout.client,
        workers=layout.worker,
        witnesses=layout.witness,
        observers=_active(layout.observer),
        shard_policy=_shard_policy(document, layout.federation, path.parent),
    )
    with document.blame("terms"):
        federation = file.federation()
    _require_quorum(document, file, len(federation.clients))
    _require_room(document, file, federation)
    return file


def charter_path(federation: Path) -> Path:
    """Where the charter of a federation.toml is: beside it."""
    return federation.with_suffix(".charter")


def sign(file: FederationFile, authority: Identity) -> Charter:
    """The charter of this file's federation. Raises ConfigError for another's key."""
    federation = file.federation()
    if authority.public != federation.authority:
        raise ConfigError(
            f"this is not the key of the authority that {file.path} names: "
            f"its public key is {authority.public.hex()}"
        )
    return authority.sign(Charter(federation, UNSIGNED))


def load_charter(path: Path) -> Charter:
    """The charter in a file. Nothing is verified here. Raises ConfigError."""
    try:
        content = path.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None
    if content.startswith(_CHARTER_OF_0_1):
        raise ConfigError(
            f"{path} is a charter of version 0.1, which this version cannot read: move it away, "
            "and sign the federation again (`ostraka sign`)"
        )
    try:
        return decode(Charter, content)
    except MalformedMessage as malformed:
        raise ConfigError(f"{path} is no charter: {malformed}") from None


def abandon_path(federation: Path) -> Path:
    """Where the Abandon of a federation.toml is, if there is one: beside it."""
    return federation.with_suffix(".abandon")


def abandoned_model_path(federation: Path) -> Path:
    """Where the model is that goes on behind an Abandon."""
    return federation.with_suffix(".abandon.safetensors")


def load_abandon(path: Path) -> Abandon:
    """The Abandon in a file. Nothing is verified here. Raises ConfigError."""
    return read_message(Abandon, path)


def read_message(kind: type[AnyMessage], path: Path) -> AnyMessage:
    """The message of this kind in a file. Nothing is verified here. Raises ConfigError."""
    try:
        return decode(kind, path.read_bytes())
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None
    except MalformedMessage as malformed:
        raise ConfigError(f"{path} is no {kind.__name__}: {malformed}") from None


def write_charter(path: Path, charter: Charter) -> None:
    """Replaces the file in one step: an enclave that starts meanwhile reads the old or the new."""
    files.write(path, [encode(charter)], mode=0o644)


def require_signed(file: FederationFile, charter: Charter) -> None:
    """Raises ConfigError unless the charter is of just this file's federation."""
    if charter.federation != file.federation(charter.federation):
        raise ConfigError(
            f"{file.path} is not what the authority signed: raise its revision and run "
            f"`ostraka sign {file.path} --key KEY`, or undo the change"
        )


def require_newer(file: FederationFile, signed: Federation) -> None:
    """Raises ConfigError unless this file may follow what was signed before, or is just that.

    Clients follow revisions upwards only, and two federations of one revision would divide them.
    """
    if file.federation(signed) == signed:
        return
    federation = file.federation()
    if federation.revision <= signed.revision:
        raise file.document.error(
            "federation.revision",
            f"the terms or the roster have changed since revision {signed.revision} was signed: "
            f"write revision = {signed.revision + 1}",
        )
    for member in signed.revoked:
        if member not in federation.revoked:
            raise file.document.error(
                "client", f"{member.name!r} was revoked, and must stay in the file as revoked"
            )


def _first_model(model: Model, folder: Path) -> tuple[Manifest, bytes]:
    """What it is made of, and the digest by which the authority signs it."""
    if model.initial is None:
        return Manifest.flat(model.dimension or 0), b""
    manifest, vector = read_model(folder / model.initial)
    return manifest, vector_digest(vector)


def _shard_policy(document: Document, about: About, folder: Path) -> str:
    """The text that the authority signs, just as it is in its file, so that all have one digest."""
    if about.shard_policy is None:
        return ""
    path = folder / about.shard_policy
    with document.blame("federation.shard_policy"):
        text = _read_bounded(path, MAX_SHARD_POLICY)
        policy_file.parse_shards(text, str(path))
    return text


def _read_bounded(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        text = content.decode()
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    if not 1 <= len(content) <= most:
        raise ConfigError(f"{path} has 1 to {most} bytes; got {len(content)} or more")
    return text


def _active(enrolled: tuple[Enrolled, ...]) -> tuple[Member, ...]:
    return tuple(_member(each) for each in enrolled if each.revoked is None)


def _member(enrolled: Enrolled) -> Member:
    return Member(enrolled.name, enrolled.key)


def _require(what: str, value: float, least: float, most: float) -> None:
    """Written as a positive condition, so that a NaN fails."""
    if not least <= value <= most:
        raise ConfigError(f"{what} is {least} to {most}; got {value}")


def _require_distinct(document: Document, layout: _Layout) -> None:
    """The enrolled are compared here, too, because only here their lines are known."""
    owners: dict[tuple[str, str | bytes], str] = {}
    tables = (
        ("client", layout.client),
        ("worker", layout.worker),
        ("witness", layout.witness),
        ("observer", layout.observer),
    )
    for table, members in tables:
        for i, member in enumerate(members):
            for taken in (("name", member.name), ("key", member.key)):
                if taken in owners:
                    what = f"{owners[taken]} has the same {taken[0]}; every party needs its own"
                    raise document.error(f"{table}[{i}].{taken[0]}", what)
                owners[taken] = f"{table} {member.name!r}"


def _require_quorum(document: Document, file: FederationFile, clients: int) -> None:
    least = file.terms.composition.least(file.terms.f)
    if not least <= file.quorum <= clients:
        raise document.error(
            "rounds.quorum",
            f"rounds.quorum is {least}, the least for {file.terms.composition} and "
            f"f={file.terms.f}, "
            f"to {clients}, the number of clients; got {file.quorum}",
        )


def _require_room(document: Document, file: FederationFile, federation: Federation) -> None:
    terms, clients = federation.terms, len(federation.clients)
    value_bytes = terms.format.dtype.itemsize
    update = value_bytes * terms.dimension + TAG_BYTES * terms.tiling.count
    round_mib = -(-clients * update // _MIB)
    if file.storage.spool_mib < round_mib:
        raise document.error(
            "storage.spool_mib",
            f"storage.spool_mib must hold a round: {clients} updates of {terms.dimension} values "
            f"take {round_mib}; got {file.storage.spool_mib}",
        )
