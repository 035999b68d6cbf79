"""Hands an enclave's state to other code, which its own sealing key would keep out.

    new enclave                        old enclave
       -------- Request -------------->    is it a successor that the authority has signed?
                                           retires, for good
       <------- Bundle ----------------    sealed to the request's key
       goes on with the next round

Both prove to each other what they are. Without the successor's proof, the host could give the state
to any code; without the predecessor's, it could send a state of its own making. Both proofs are
checked against a policy that the host may have written. So the authority has to sign which code
follows which enclave, and names the predecessor by its receipt key: a made-up one has another.
"""

import hashlib
import os
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from ostraka.attestation.claims import Claims
from ostraka.attestation.policy import Policy
from ostraka.attestation.verify import Circumstances, read, verify_evidence
from ostraka.config import Federation, succession
from ostraka.crypto import hpke
from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.hpke import Entropy, HybridKey, fingerprint
from ostraka.crypto.sealing import Sealer
from ostraka.crypto.stream import SecretStream
from ostraka.enclave.platform.interface import EvidenceProvider
from ostraka.enclave.storage import ledger
from ostraka.enclave.storage.ledger import HandedOver, History
from ostraka.enclave.storage.state import EnclaveState, Estate
from ostraka.encoding import Digest, Key, decode, digest, encode, pack
from ostraka.errors import (
    AttestationRefused,
    LocalProtocolError,
    OpenError,
    Refusal,
    StateError,
)
from ostraka.messages import SIMULATION, Charter, Evidence
from ostraka.messages import HybridKey as HybridPublic

_REQUEST = b"ostraka/migration/v2"
_BUNDLE = b"ostraka/migration-bundle/v2"
_SEALED_KEY = b"ostraka/migration-key/v2"
_PURPOSE = "estate"


@dataclass(frozen=True)
class Request:
    """Asks for the state, for a new enclave. The evidence is about the key and the federation."""

    LABEL: ClassVar[bytes] = b"ostraka/migration-request/v2"

    key: HybridPublic
    federation: Digest  # of the federation that it would go on with
    evidence: Evidence


@dataclass(frozen=True)
class Parcel:
    """An estate on its way from one enclave to another. key: fingerprint of the request's key."""

    LABEL: ClassVar[bytes] = b"ostraka/migration-parcel/v2"

    origin: Digest
    successor: Digest
    federation: Digest
    key: Digest
    sealed_key: bytes  # HPKE: a fresh key, under which the estate is sealed
    estate: bytes


@dataclass(frozen=True)
class Bundle:
    """A parcel, and evidence of the enclave that made this very parcel."""

    LABEL: ClassVar[bytes] = b"ostraka/migration-bundle/v2"

    parcel: Parcel
    evidence: Evidence


@dataclass(frozen=True)
class Exported:
    """What `export` gives. again: this successor was given the state before, and asked again."""

    bundle: bytes = field(repr=False)
    successor: bytes
    again: bool


@dataclass(frozen=True)
class TakenOver:
    """What `take_over` gives. receipt_key: goes on signing. rounds: how many were published."""

    origin: bytes
    receipt_key: bytes
    rounds: int
    revision: int


@dataclass(frozen=True)
class _Pending:
    """What a new enclave must remember until its bundle comes, under its own seal."""

    LABEL: ClassVar[bytes] = b"ostraka/migration-pending/v2"

    seed: Key = field(repr=False)
    federation: Digest

    def key(self) -> HybridKey:
        return HybridKey(SecretStream(self.seed).bytes)


def request(
    state: EnclaveState,
    provider: EvidenceProvider,
    *,
    federation: bytes,
    entropy: Entropy = os.urandom,
) -> bytes:
    """Make the request of a new enclave. state: its own, fresh. federation: the digest.

    Asking again gives the same key, so a bundle for an earlier request of this folder still opens.
    """
    state.require_fresh()
    seed = _pending(state).seed if state.migration.exists() else entropy(KEY_BYTES)
    pending = _Pending(seed, federation)
    public = pending.key().public
    evidence = provider.evidence(_request_data(public, federation))
    _require_own(state.sealer, evidence)
    state.migration.write(encode(pending))
    return encode(Request(public, federation, evidence))


def export(
    state: EnclaveState,
    request: bytes,
    *,
    provider: EvidenceProvider,
    policy: Policy,
    circumstances: Circumstances,
) -> Exported:
    """Make the old enclave's answer. From here on it is retired, and never starts again.

    Raises MalformedMessage, AttestationRefused, or StateError if another has the state already, or
    if it leads shards and other code asks.
    """
    wanted = decode(Request, request)

    # 1. The platform vouches for the code that asks, and the policy lists both.
    claims = verify_evidence(wanted.evidence, policy, circumstances)

    # 2. A simulated enclave follows a simulated one only, and a real one a real one.
    _require_same_world(claims.kind, provider.kind)

    # 3. The evidence is about the key, and about the federation that this enclave runs now.
    if wanted.federation != state.federation.digest():
        raise AttestationRefused(
            Refusal.BINDING,
            f"the request is not for revision {state.federation.revision} of the federation, "
            "which is the one in force",
        )
    _require_about(claims, _request_data(wanted.key, wanted.federation))

    # 4. The authority has signed, in that revision, that this code may follow the enclave with this
    #    receipt key. It may be the same code: on another machine, or under another sealing key.
    _require_succession(state.receipt_key, claims.code_id, state.federation)

    # 5. Slices are bound to this code: a lead of other code could not have its model put together.
    if state.leads and claims.code_id != state.sealer.code_id:
        raise StateError(
            state.folder,
            "belongs to a lead, whose shards' slices open under the same code alone: it cannot be "
            "handed to other code, and this enclave is not retired",
        )

    # 6. Retire, durably, and only then let the bundle leave.
    again = state.handed_over_to is not None
    seal = partial(_seal, state.sealer, wanted, claims.code_id, provider)
    bundle = state.hand_over(claims.code_id, fingerprint(wanted.key), seal)
    return Exported(bundle, claims.code_id, again)


def take_over(
    state: EnclaveState,
    bundle: bytes,
    *,
    charter: Charter,
    provider: EvidenceProvider,
    policy: Policy,
    circumstances: Circumstances,
) -> TakenOver:
    """Go on where the old enclave stopped. state: the new one's, with a request pending.

    charter: the one in the new enclave's folder. It names the authority.
    Raises MalformedMessage, AttestationRefused, OpenError or StateError; nothing has changed then.
    """
    pending = _pending(state)
    received = decode(Bundle, bundle)
    parcel, key = received.parcel, pending.key()

    # 1. The bundle answers the request of this enclave.
    addressed = (parcel.successor, parcel.federation, parcel.key)
    if addressed != (state.sealer.code_id, pending.federation, fingerprint(key.public)):
        raise StateError(
            state.migration.path,
            "the bundle answers another request than the one that was made in this folder: "
            "export again with this one, or import where the other was made",
        )

    # 2. The platform vouches for the code that made it, and the policy lists both.
    claims = verify_evidence(received.evidence, policy, circumstances)

    # 3. A simulated enclave follows a simulated one only, and a real one a real one.
    _require_same_world(claims.kind, provider.kind)

    # 4. That code is the one it says, and the evidence is about just this parcel.
    if claims.code_id != parcel.origin:
        raise AttestationRefused(Refusal.BINDING, "the bundle names another sender")
    _require_about(claims, _bundle_data(parcel))

    # 5. It opens, and all of it fits together: records, signatures, model.
    estate = _open(parcel, key)
    history = estate.verify(parcel.origin)

    # 6. The old enclave has retired in favour of this one, in the federation that was asked for.
    if ledger.decode(estate.records[-1]) != HandedOver(parcel.successor, parcel.key):
        raise OpenError("bundle that was handed to another")
    if history.federation.digest() != pending.federation:
        raise OpenError("bundle of another federation")

    # 7. The authority of this enclave's own charter has signed that it may follow the enclave with
    #    this receipt key. A predecessor that the host has made up has another.
    if history.federation.authority != charter.federation.authority:
        raise AttestationRefused(Refusal.AUTHORITY, "the bundle is from another authority's")
    _require_succession(history.receipt_key or b"", parcel.successor, history.federation)

    # 8. Write it down; the last file makes it so.
    state.inherit(estate, parcel.origin)
    return _told(parcel, history)


def _told(parcel: Parcel, history: History) -> TakenOver:
    return TakenOver(
        origin=parcel.origin,
        receipt_key=history.receipt_key or b"",
        rounds=history.number,
        revision=history.federation.revision,
    )


def _seal(
    own: Sealer, wanted: Request, successor: bytes, provider: EvidenceProvider, estate: Estate
) -> bytes:
    """Make the bundle. HPKE carries a fresh key, bound to both code ids and the federation."""
    key = os.urandom(KEY_BYTES)
    names = (own.code_id, successor, wanted.federation, fingerprint(wanted.key))
    parcel = Parcel(
        *names,
        sealed_key=hpke.seal(wanted.key, key, info=pack(_SEALED_KEY, *names)),
        estate=Sealer(key, successor).seal(_PURPOSE, encode(estate)),
    )
    evidence = provider.evidence(_bundle_data(parcel))
    _require_own(own, evidence)
    return encode(Bundle(parcel, evidence))


def _open(parcel: Parcel, key: HybridKey) -> Estate:
    names = (parcel.origin, parcel.successor, parcel.federation, parcel.key)
    secret = key.open(parcel.sealed_key, info=pack(_SEALED_KEY, *names))
    return decode(Estate, Sealer(secret, parcel.successor).open(_PURPOSE, parcel.estate))


def _pending(state: EnclaveState) -> _Pending:
    state.require_fresh()
    if not state.migration.exists():
        raise StateError(
            state.migration.path,
            "is missing: no request was made in this folder (`ostraka enclave migrate request`), "
            "and a bundle opens only where its request was made",
        )
    return decode(_Pending, state.migration.read())


def _request_data(key: bytes, federation: bytes) -> bytes:
    return hashlib.sha512(pack(_REQUEST, key, federation)).digest()


def _bundle_data(parcel: Parcel) -> bytes:
    return hashlib.sha512(pack(_BUNDLE, digest(parcel))).digest()


def _require_about(claims: Claims, report_data: bytes) -> None:
    if claims.report_data != report_data:
        raise AttestationRefused(Refusal.BINDING)


def _require_own(sealer: Sealer, evidence: Evidence) -> None:
    """Raises unless the state is sealed under the code id that this enclave's evidence shows."""
    if read(evidence).code_id != sealer.code_id:
        raise LocalProtocolError("the platform attests to other code than the state belongs to")


def _require_same_world(one: str, other: str) -> None:
    if (one == SIMULATION) != (other == SIMULATION):
        raise AttestationRefused(
            Refusal.KIND, f"state does not pass between {other!r} and {one!r} evidence"
        )


def _require_succession(receipt_key: bytes, code_id: bytes, federation: Federation) -> None:
    agreed = succession(receipt_key, code_id)
    if agreed not in federation.successors:
        raise AttestationRefused(
            Refusal.MEASUREMENT,
            f"that {code_id.hex()} follows the enclave with the receipt key {receipt_key.hex()} "
            f"is not among the successors in revision {federation.revision} of the federation; "
            f"its authority must sign a revision that lists {agreed.hex()}",
        )
