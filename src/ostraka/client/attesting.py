"""Who is the enclave? It is asked with a fresh nonce, and has to prove its keys and its rules."""

import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc

from ostraka.attestation.claims import NONCE_BYTES, Attested, Claims, KeyBinding
from ostraka.attestation.policy import Policy
from ostraka.attestation.verify import (
    Circumstances,
    require_bound,
    verify,
    verify_charter,
    verify_evidence,
)
from ostraka.client.connection import LONG_POLL_S, UNCONFIRMED, Connection, Greeting
from ostraka.client.events import Waiting
from ostraka.config import Federation
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import AttestationRefused, ServiceError
from ostraka.messages import Challenge, Charter, Evidence, Introduction, RoundOffer
from ostraka.transport import FINISHED, collateral
from ostraka.transport import ostraka_pb2 as wire


@dataclass(frozen=True)
class Verifier:
    """Who this client is, and what it accepts.

    policy_file: where the policy was read; it names collateral relative to that. observes: it is an
    observer, which the operator admits and no charter names.
    """

    name: str
    identity: Identity
    policy: Policy = field(repr=False)
    policy_file: Path
    unsafe_simulation: bool
    observes: bool = False

    @property
    def greeting(self) -> Greeting | None:
        """What proves a connection; None with a policy that names no federation."""
        federation = self.policy.federation.id
        return Greeting(self.name, self.identity, federation) if federation else None


class Unconfirmed(ServiceError):
    """No round opens before an outcome is confirmed."""


@dataclass(frozen=True)
class Met:
    """A proved enclave, the round that it opened, and the terms that it keeps to."""

    charter: Charter
    offer: RoundOffer
    attested: Attested


def meet(
    connection: Connection,
    who: Verifier,
    held: Charter | None = None,
    answered: "Answer | None" = None,
) -> Met | None:
    """The enclave and its open round; None if all rounds are over. Waits for a round to open.

    held: the charter that this client knows, which is not sent again. answered: what the enclave
    has said of itself just now. Raises AttestationRefused, Unconfirmed while an outcome waits to be
    confirmed, and ServiceError for a client that is not enrolled.
    """
    try:
        answer = answered or _introduction(connection, who, held)
    except ServiceError as refused:
        if refused.status == grpc.StatusCode.PERMISSION_DENIED.name:
            _agreed(_charter(connection), who)  # which says better why
        raise
    if answer is None:
        return None
    federation = _agreed(answer.charter, who)
    attested = verify(
        answer.introduction,
        nonce=answer.nonce,
        federation=federation,
        policy=who.policy,
        circumstances=circumstances(who, answer.introduction.evidence),
    )
    return Met(answer.charter, answer.introduction.offer, attested)


def _agreed(charter: Charter, who: Verifier) -> Federation:
    """Raises AttestationRefused, and ServiceError for a client that is not enrolled."""
    federation = verify_charter(charter, who.policy, int(time.time()))
    if not who.observes:
        require_enrolled(federation, who.name, who.identity)
    return federation


@dataclass(frozen=True)
class Proved:
    """A proved enclave, whether a round is open or not, and the terms that it keeps to.

    claims: what its evidence says.
    """

    charter: Charter
    receipt_key: bytes
    claims: Claims


def prove(connection: Connection, who: Verifier) -> Proved:
    """The enclave, for who sends it nothing that is secret. Raises as `meet` does."""
    charter = _charter(connection)
    while True:
        federation = _agreed(charter, who)
        nonce = os.urandom(NONCE_BYTES)
        signed = who.identity.sign(Challenge(nonce, who.name, UNSIGNED))
        reply = connection.ask("Prove", wire.ProveRequest(challenge=encode(signed)))
        evidence = decode(Evidence, reply.evidence)
        claims = verify_evidence(evidence, who.policy, circumstances(who, evidence))
        try:
            require_bound(claims, KeyBinding(nonce, reply.receipt_key, federation.digest()))
        except AttestationRefused:
            newest = _charter(connection)
            if newest.federation.revision <= charter.federation.revision:
                raise
            charter = newest  # The terms changed in between, and the evidence is about new ones.
        else:
            return Proved(charter, reply.receipt_key, claims)


def _charter(connection: Connection) -> Charter:
    reply = connection.ask("GetCharter", wire.CharterRequest())
    return decode(Charter, reply.charter)


@dataclass(frozen=True)
class Answer:
    """What an enclave has said of itself. nonce: of the challenge that this is the answer to."""

    nonce: bytes
    introduction: Introduction
    charter: Charter


@dataclass(frozen=True)
class Question:
    """A challenge. It is asked once: an enclave that restarts may be another one.

    held: the charter that this client knows.
    """

    who: Verifier
    held: Charter | None
    nonce: bytes = field(default_factory=partial(os.urandom, NONCE_BYTES))

    def request(self) -> wire.IntroduceRequest:
        signed = self.who.identity.sign(Challenge(self.nonce, self.who.name, UNSIGNED))
        holds = digest(self.held) if self.held else b""
        return wire.IntroduceRequest(challenge=encode(signed), holds=holds)

    def answer(self, reply: wire.IntroduceReply) -> Answer:
        """Raises MalformedMessage."""
        known = self.held if self.held and not reply.charter else None
        charter = known or decode(Charter, reply.charter)
        return Answer(self.nonce, decode(Introduction, reply.introduction), charter)


def _introduction(connection: Connection, who: Verifier, held: Charter | None) -> Answer | None:
    """What the enclave says of itself; None if all rounds are over."""

    def challenge() -> Answer:
        question = Question(who, held)
        request = question.request()
        request.ticket_digest = connection.draw_ticket()
        reply = connection.once("Introduce", request, seconds=LONG_POLL_S)
        connection.keep_ticket(request.ticket_digest)
        return question.answer(reply)

    connection.tell(Waiting("an open round"))
    try:
        return connection.attempt(challenge)
    except ServiceError as refused:
        if refused.said == FINISHED:
            return None
        if refused.said == UNCONFIRMED:
            raise Unconfirmed(str(refused)) from None
        raise


def circumstances(who: Verifier, evidence: Evidence) -> Circumstances:
    """What it takes to verify this evidence, now. Raises ConfigError or AttestationRefused."""
    return Circumstances(
        now=int(time.time()),
        collateral=collateral.for_evidence(evidence, who.policy, beside=who.policy_file),
        unsafe_simulation=who.unsafe_simulation,
    )


def require_enrolled(federation: Federation, name: str, identity: Identity) -> None:
    """Raises ServiceError, which says what is wrong better than the other side would."""
    revision = f"revision {federation.revision} of the federation"
    if name in {member.name for member in federation.revoked}:
        raise ServiceError(f"{name!r} is revoked in {revision}: ask its operator why")
    keys = {member.name: member.key for member in federation.clients + federation.witnesses}
    if name not in keys:
        raise ServiceError(
            f"{name!r} is not enrolled in {revision}: its operator has to add it (ostraka client "
            "enrol, or ostraka witness enrol, prints the lines)"
        )
    if keys[name] != identity.public:
        raise ServiceError(
            f"{name!r} is enrolled with another key in {revision}: {keys[name].hex()}"
        )
