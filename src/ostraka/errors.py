"""Every deliberate error, whose fault it is, and the exit code that it ends a program with.

OstrakaError
├── ConfigError              the numbers asked for cannot work: change them
├── LocalProtocolError       our own bug or misuse: stop
├── PlatformError            the machine's TEE or its files do not answer as they must
├── RemoteProtocolError      a peer's message: drop it, keep the round
│   ├── MalformedMessage     bytes that are no message at all
│   ├── OpenError            bytes that do not authenticate or decrypt, for any reason
│   │   └── NotEnrolled      they claim a name that is on no roster
│   ├── UpdateRejected       an authentic update that breaks a rule: says whose and which
│   ├── AttestationRefused   evidence or a roster that a policy does not accept: says why
│   ├── ReceiptRefused       a receipt or offer that a client must not follow
│   │   ├── Fork             two receipts for one round: proof that the enclave's state was forked
│   │   └── RolledBack       two proposals for one round: its state was copied or set back
│   └── WorkerError          a worker's answer that cannot be used: says which worker
│       ├── WorkerLied       its numbers are provably false
│       └── WorkerGone       it did not answer in time; slow is not dishonest
├── ServiceError             the other side cannot be reached or refuses to serve: says what to do
├── StateError               sealed state that cannot be used: says which file and what to do
├── StorageFull              the disk or its limit is full: nothing was lost
└── RoundFailed              the round cannot be completed, and nothing was published
    ├── TooFewUpdates        fewer valid updates than the rule needs
    ├── TooFewWeighed        fewer clients than f + 2 would have a weight in the aggregate
    └── RootAbsent           the root client took no part, and too few others did to do without
"""

from collections import Counter
from enum import StrEnum


class OstrakaError(Exception):
    """The root of every error that Ostraka raises on purpose.

    Remedy: read the message of the class below it, which is the one that is raised.
    """


class ConfigError(OstrakaError, ValueError):
    """The caller asked for numbers that cannot work together.

    Remedy: change the argument, or the line of the file, that the message names.
    """


class LocalProtocolError(OstrakaError):
    """This side broke its own protocol: a bug or a misuse, never the peer's fault.

    Remedy: stop, and correct the call that the message names; if the code is not
    yours, report it.
    """


class PlatformError(OstrakaError):
    """The TEE of this machine, or a file beside it, does not answer as it must. Says what to do.

    Remedy: do what the message says: another machine, a device that is passed through, or
    `--unsafe-simulation` to try things out.
    """


class RemoteProtocolError(OstrakaError):
    """A peer sent something unacceptable. The message is dropped and nothing has changed.

    Remedy: none is needed for the round, which goes on. If it repeats, look into the
    peer that is named.
    """


class MalformedMessage(RemoteProtocolError):
    """These bytes are not a message of the expected kind.

    Remedy: give both sides the same release; a file may be damaged or of another kind.
    """


class OpenError(RemoteProtocolError):
    """These bytes do not authenticate or decrypt. One error, so that no cause can be told apart.

    Remedy: is the key the one that is enrolled, and is the roster signed and adopted? It may
    also be that somebody altered the message.
    """

    def __init__(self, what: str = "message") -> None:
        super().__init__(f"{what} does not open: altered, misplaced, or not from an enrolled party")


class NotEnrolled(OpenError):
    """A message claims a name that is not on the roster. Nothing about it is authentic.

    Remedy: enrol the party, raise the revision, and sign; or ignore a stranger.
    """

    def __init__(self, name: str) -> None:
        super().__init__("UpdateHeader")
        self.name = name


class Rejection(StrEnum):
    """Why a client's update does not take part. The text is what an operator reads."""

    REVOKED = "revoked by the federation's authority"
    FOREIGN_ROUND = "made for another round"
    FOREIGN_FEDERATION = "made for another federation"
    FOREIGN_KEY = "sealed to another round key"
    WRONG_SHAPE = "wrong dimension, tiles or manifest"
    UNOPENABLE_KEY = "its sealed key does not open"
    BAD_NORM = "its stated norm is not possible (a NaN or an infinity in the update makes it so)"
    BAD_STEP = "its stated step is not possible in the format of its upload"
    DUPLICATE = "sent twice"
    LATE = "arrived after the round closed"
    INCOMPLETE = "incomplete when the round closed"
    NOT_FINITE = "holds a NaN or an infinity"
    BAD_VALUE = "holds a value that its format does not have"
    FALSE_NORM = "its norm is not the stated one"
    CHANGED = "a tile changed after it arrived"

    @property
    def provable(self) -> bool:
        """True if only the client can have caused it: the host cannot forge what it signed."""
        return self in _PROVABLE


_PROVABLE = frozenset(
    {
        Rejection.WRONG_SHAPE,
        Rejection.UNOPENABLE_KEY,
        Rejection.BAD_NORM,
        Rejection.BAD_STEP,
        Rejection.NOT_FINITE,
        Rejection.BAD_VALUE,
        Rejection.FALSE_NORM,
    }
)


class UpdateRejected(RemoteProtocolError):
    """An authentic update breaks a rule. Only this client is affected.

    Remedy: correct what the reason says at that client, and submit again: other clients
    are not affected.
    """

    def __init__(self, client: str, reason: Rejection) -> None:
        super().__init__(f"update of client {client!r} rejected: {reason}")
        self.client = client
        self.reason = reason


class Refusal(StrEnum):
    """Why a client does not trust an enclave. Each is one step of the verification."""

    AUTHORITY = "the federation is not signed by the authority that the policy names"
    WORKERS = "a worker is enrolled whose key the policy does not pin"
    SUCCESSOR = "the enclave may hand its state to code that the policy does not pin"
    SHARDS = "the evidence of shards is held to a policy that this one does not pin"
    FEDERATION = "this is another federation than the one that the policy names"
    EXPIRED = "the charter has expired: a newer revision of terms and roster is withheld, or is due"
    WITNESSES = "the witnesses are not those that the policy pins"
    CONFIRM = "the policy's `confirms` does not list who confirms outcomes here"
    MASKING = "the policy does not allow this masking"
    RULE = "the policy's `rules` does not list the aggregation rule here"
    DISCLOSURE = "aggregates may hold single clients' values here, and the policy does not allow it"
    METRICS = "means of what clients report are published here, and the policy does not allow it"
    KIND = "the policy does not allow this kind of evidence"
    SIMULATION_POLICY = "simulated evidence, and the policy does not allow it"
    SIMULATION_FLAG = "simulated evidence, and the caller did not ask for it (unsafe_simulation)"
    MALFORMED = "the evidence cannot be read"
    COLLATERAL = "the platform's collateral is missing or does not fit"
    ROOT = "the certificates do not lead to the pinned root"
    SIGNATURE = "the evidence is not signed by the platform"
    VALIDITY = "a certificate or a piece of collateral is not valid at this time"
    REVOKED = "the platform is revoked"
    TCB = "the platform's security version is not good enough"
    PLATFORM = "the policy does not allow such a platform"
    DEBUG = "the enclave can be debugged, so its host can read it"
    MEASUREMENT = "the policy does not list this code"
    VERSION = "the code's security version is too low"
    BINDING = "the evidence is about another challenge, another key or another federation"


class AttestationRefused(RemoteProtocolError):
    """This enclave is not trusted, and nothing was sealed to it.

    Remedy: read the reason. List a measurement only if you know why it has changed;
    the message has the line to write.
    """

    def __init__(self, reason: Refusal, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


class ReceiptRefused(RemoteProtocolError):
    """A statement that this client must not follow: stale, forked or foreign.

    Remedy: ask the operator whether old state was restored, and compare receipts with
    other clients.
    """


class Fork(ReceiptRefused):
    """The enclave signed two receipts for one round. Both are kept: together they are the proof.

    Remedy: stop. Keep the file `fork-…` beside the memory, show it to the other clients, and found
    a new federation.
    """

    def __init__(self, held: object, other: object) -> None:
        super().__init__(
            "two different receipts are signed for the same round: the chain is forked"
        )
        self.held = held
        self.other = other


class RolledBack(ReceiptRefused):
    """The enclave's state was copied or set back. proof: an older proposal, signed by its key.

    Remedy: the operator stops the enclave, brings back its newest state folder, and starts
    it. If that is lost, the clients testify and the authority abandons the round.
    """

    def __init__(self, number: int, proof: object) -> None:
        super().__init__(
            f"the enclave has signed another proposal of round {number} before: its state was "
            "copied, or set back to an older one. It publishes nothing; its operator has to bring "
            "back its newest state"
        )
        self.number = number
        self.proof = proof


class WorkerError(RemoteProtocolError):
    """A worker's answer cannot be used.

    Remedy: look at the log of the worker that is named; the enclave measures without it.
    """

    def __init__(self, worker: str, what: str) -> None:
        super().__init__(f"worker {worker!r} {what}")
        self.worker = worker


class WorkerLied(WorkerError):
    """Workers returned numbers that are provably not those of the shares they were given.

    Remedy: revoke the key of that worker, and find out who altered it. The model is right all
    the same.
    """

    def __init__(self, workers: tuple[str, ...]) -> None:
        super().__init__(", ".join(workers), "returned a false matrix")
        self.workers = workers


class WorkerGone(WorkerError):
    """A worker did not answer. That is a fault, not a lie.

    Remedy: look at its log and its network; raise `measure_s` if it is only slow.
    """


class ServiceError(OstrakaError):
    """The other side cannot be reached, or refuses to serve. The message says what to do.

    status: gRPC's word for the answer, such as NOT_FOUND; empty if there was none. said: what the
    other side said, in its own words, which are not verified.

    Remedy: do what the message says; a client may call again with the same update.
    """

    def __init__(self, what: str, *, status: str = "", said: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.said = said


class StateError(OstrakaError):
    """Sealed state cannot be used. The message says which file it is, and what to do.

    Remedy: do what the message says of the file that it names. Never delete `ledger`.
    """

    def __init__(self, file: object, what: str) -> None:
        super().__init__(f"{file}: {what}")


class StorageFull(OstrakaError):
    """The disk, or the limit that the configuration sets, is full. Nothing was lost.

    Remedy: make room, or raise `spool_mib`; it goes on by itself.
    """


class RoundFailed(OstrakaError):
    """The round cannot be completed. Nothing was published.

    Remedy: look at who took part and who was rejected; the next number follows by itself.
    """


class TooFewUpdates(RoundFailed):
    """Fewer valid updates than the rule needs. `rejected` says whose were not valid, and why.

    Remedy: enrol more clients, lower `f`, or take a rule that needs fewer (`ostraka
    rules`).
    """

    def __init__(
        self, rule: str, least: int, valid: int, f: int, rejected: dict[str, Rejection]
    ) -> None:
        reasons = Counter(rejected.values()).most_common()
        why = "; ".join(f"{count} x {reason}" for reason, count in reasons) or "none"
        super().__init__(
            f"{rule} needs at least {least} updates; {valid} valid updates and f={f} are left. "
            f"Rejected: {why}"
        )
        self.rejected = rejected


class TooFewWeighed(RoundFailed):
    """Fewer than f + 2 clients would have a weight: f colluders could see one honest update.

    Remedy: take another rule, or a smaller `f`.
    """

    def __init__(self, weighed: int, f: int) -> None:
        super().__init__(
            f"the rule weighs {weighed} updates; it takes f + 2 = {f + 2} to hide each of them"
        )


class RootAbsent(RoundFailed):
    """The client that a rule trusts took no part, and too few others did to decide without it.

    Remedy: find out why the root client stays away, or let more clients take part.
    """

    def __init__(self, fallback: str, least: int, n: int) -> None:
        super().__init__(
            f"the root client took no part, and without it {fallback} needs at least {least} "
            f"updates; {n} are left"
        )


class LeakyMasking(UserWarning):
    """The chosen masking does not hide updates from a single worker.

    Remedy: take `masking = "exact"`, unless you reproduce the paper.
    """

    def __init__(self) -> None:
        super().__init__(
            "Gaussian masking reproduces the paper and leaks: one worker alone can recognise "
            "updates by the polar attack, however strong the noise (docs/threat-model.md)"
        )


class ToleranceUsedUp(UserWarning):
    """As many updates were rejected as may be Byzantine: the rule counts on all others.

    Remedy: look at `rejected`; raise `f` if the federation is large enough for it.
    """

    def __init__(self, rejected: int, f: int) -> None:
        super().__init__(
            f"{rejected} updates were rejected, and f = {f}: the rule takes all others for honest, "
            "and one more attacker can move the aggregate; look at `rejected`, or raise f"
        )


# How a program of ours ends, for scripts. 0 means that it did what was asked.
FAILED = 1  # it failed, or an attacker was averaged in
IMPOSSIBLE = 2  # the request cannot work: wrong arguments, numbers or files
REFUSED = 3  # evidence, a charter or receipts are not to be trusted
INTERRUPTED = 130  # by Ctrl-C
TERMINATED = 143  # by SIGTERM


def exit_code(error: OstrakaError) -> int:
    """Return the exit code of a program that this error ended."""
    if isinstance(error, AttestationRefused | ReceiptRefused | OpenError):
        return REFUSED
    return IMPOSSIBLE if isinstance(error, ConfigError) else FAILED


def installing(extra: str) -> str:
    """Say how to install what an optional part needs. No package index has Ostraka yet."""
    return (
        f"in a clone, pip install -c constraints.txt -e '.[{extra}]'; "
        f"from a wheel, pip install 'THE-WHEEL.whl[{extra}]'"
    )


def printable(text: str, longest: int | None = None) -> str:
    """Escape what could move a cursor or forge a line in a log or on a terminal.

    longest: the number of characters to keep; None to keep them all.
    """
    kept = text[:longest]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
    return shown[:longest]
