"""The attested channel between a lead and one of its shards, for one connection.

    lead -> shard   ShardWelcome    a nonce
    shard -> lead   ShardHello      its keys and its own nonce; evidence about all of that, signed
    lead -> shard   ShardAdmitted   HPKE(secret) to the shard's key; evidence about all, signed
    both            key = HKDF-SHA256(secret, label, welcome, hello, admitted), for each direction

Both run the same code on platforms that meet the policy for shards in the signed federation, and
each checks that of the other before it believes or gives anything. All keys are drawn for one
connection and nothing is stored: a shard that comes back is a new one. There is no I/O here and no
clock; evidence takes its time to make, so `hello` and `admit` are for a thread.
"""

import hashlib
import os
from dataclasses import replace
from secrets import compare_digest
from threading import Lock

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ostraka.attestation import policy_file
from ostraka.attestation.policy import Policy
from ostraka.attestation.verify import Circumstances, read, require_deputy, verify_evidence
from ostraka.config import Federation
from ostraka.crypto import hpke
from ostraka.crypto.aead import KEY_BYTES, nonce
from ostraka.crypto.hpke import Entropy, HybridKey
from ostraka.crypto.identity import Identity, check_signature
from ostraka.enclave.platform.interface import EvidenceProvider
from ostraka.encoding import UNSIGNED, encode, pack
from ostraka.errors import AttestationRefused, LocalProtocolError, OpenError, Refusal
from ostraka.messages import (
    SIMULATION,
    Deputy,
    Evidence,
    ShardAdmitted,
    ShardHello,
    ShardWelcome,
)

_NONCE_BYTES = 32
_HELLO = b"ostraka/report-data/shard-hello/v1"
_ADMITTED = b"ostraka/report-data/shard-admitted/v1"
_SECRET = b"ostraka/peer-secret/v1"
_TO_SHARD = b"ostraka/peer-channel/v1/to-shard"
_TO_LEAD = b"ostraka/peer-channel/v1/to-lead"
_NO_EVIDENCE = Evidence("", b"", ())


class PeerChannel:
    """Seals and opens messages in order, under a key for each direction.

    A message that does not open as the next one ends the channel: it was altered, repeated, left
    out or put elsewhere, and what follows cannot be told from an attack. Each direction may be used
    from any thread. What was sealed first must be sent first.
    """

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending, self._receiving = AESGCM(sending), AESGCM(receiving)
        self._sent = self._received = 0
        self._sealing, self._opening = Lock(), Lock()
        self._dead = False

    def __repr__(self) -> str:
        return f"PeerChannel(sent={self._sent}, received={self._received}, <secret>)"

    def seal(self, plaintext: bytes) -> bytes:
        """Seals the next message to the other side. Raises OpenError once the channel has ended."""
        with self._sealing:
            self._require_alive()
            number, self._sent = self._sent, self._sent + 1
            return self._sending.encrypt(nonce(number), plaintext, None)

    def open(self, sealed: bytes) -> bytes:
        """Opens the next message of the other side. Raises OpenError, and then always."""
        with self._opening:
            self._require_alive()
            try:
                plaintext = self._receiving.decrypt(nonce(self._received), sealed, None)
            except (InvalidTag, ValueError):
                self._dead = True
                raise OpenError("message of a peer") from None
            self._received += 1
            return plaintext

    def _require_alive(self) -> None:
        if self._dead:
            raise OpenError("channel that has ended")


class _Peer:
    """What lead and shard check of each other. code_id: that of this process, by its platform."""

    def __init__(
        self,
        federation: Federation,
        provider: EvidenceProvider,
        code_id: bytes,
        entropy: Entropy = os.urandom,
    ) -> None:
        self.policy: Policy = policy_file.of_shards(federation)
        self._federation = federation
        self._provider = provider
        self._code_id = code_id
        self._entropy = entropy

    def _evidence(self, report_data: bytes) -> Evidence:
        """Returns evidence of this process. Raises PlatformError or LocalProtocolError."""
        evidence = self._provider.evidence(report_data)
        if read(evidence).code_id != self._code_id:
            raise LocalProtocolError("the platform attests to other code than this process runs")
        return evidence

    def _verify(self, evidence: Evidence, report_data: bytes, circumstances: Circumstances) -> None:
        """Raises AttestationRefused unless the other side is one of us, and means just this."""
        # 1. Its evidence meets the policy for shards that the authority has signed.
        claims = verify_evidence(evidence, self.policy, circumstances)

        # 2. Simulated enclaves work with simulated ones only, and real ones with real ones.
        if (claims.kind == SIMULATION) != (self._provider.kind == SIMULATION):
            raise AttestationRefused(
                Refusal.KIND,
                f"an enclave with {self._provider.kind!r} evidence has no peer with "
                f"{claims.kind!r} evidence",
            )

        # 3. It runs the very code that runs here. The policy may list other releases as well.
        if claims.code_id != self._code_id:
            raise AttestationRefused(
                Refusal.MEASUREMENT,
                f"lead and shards run the same code: {claims.code_id.hex()} runs there, and "
                f"{self._code_id.hex()} here; start both from one release",
            )

        # 4. The evidence is about this connection's nonce, and about these keys.
        if not compare_digest(claims.report_data, report_data):
            raise AttestationRefused(Refusal.BINDING)


class Admission(_Peer):
    """The lead's side of one connection. A hello that is refused changes nothing.

    identity: the receipt key. shards: how many there are; their numbers are below that.
    welcome: what the shard is told first. policy: what `circumstances` need collateral for.
    Raises ConfigError if the federation has no shards.
    """

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        *,
        shards: int,
        provider: EvidenceProvider,
        code_id: bytes,
        entropy: Entropy = os.urandom,
    ) -> None:
        super().__init__(federation, provider, code_id, entropy)
        self._identity = identity
        self._shards = shards
        self._used = False
        self.welcome = ShardWelcome(entropy(_NONCE_BYTES), federation.id, federation.revision)

    def __repr__(self) -> str:
        return f"Admission(nonce={self.welcome.nonce.hex()[:16]}, used={self._used})"

    def admit(
        self, hello: ShardHello, circumstances: Circumstances
    ) -> tuple[ShardAdmitted, PeerChannel]:
        """Returns the answer to a shard, and the channel to it.

        Raises AttestationRefused or OpenError, and PlatformError if there is no evidence.
        """
        if self._used:
            raise LocalProtocolError("an admission is for one shard")

        # 1. The holder of the shard's key has said this.
        check_signature(hello, hello.key)

        # 2. It would work under the very terms and roster that are in force here.
        self._require_charter(hello)
        if hello.shard not in range(self._shards):
            raise AttestationRefused(
                Refusal.BINDING,
                f"there is no shard {hello.shard}: this lead has {self._shards}, from 0 on",
            )

        # 3 to 6. Its platform vouches for our own code, about this welcome and these keys.
        self._verify(hello.evidence, _hello_data(self.welcome, hello), circumstances)

        # 7. Only now a secret is drawn for it, and its key is deputed.
        secret = self._entropy(KEY_BYTES)
        admitted = self._answer(hello, secret)
        self._used = True
        to_shard, to_lead = _keys(secret, self.welcome, hello, admitted)
        return admitted, PeerChannel(sending=to_shard, receiving=to_lead)

    def _answer(self, hello: ShardHello, secret: bytes) -> ShardAdmitted:
        deputy = Deputy(self._federation.id, hello.shard, hello.key, UNSIGNED)
        blank = ShardAdmitted(
            self._identity.public,
            hpke.seal(hello.ephemeral, secret, info=_info(self.welcome, hello)),
            self._identity.sign(deputy),
            _NO_EVIDENCE,
            UNSIGNED,
        )
        evidence = self._evidence(_admitted_data(self.welcome, hello, blank))
        return self._identity.sign(replace(blank, evidence=evidence))

    def _require_charter(self, hello: ShardHello) -> None:
        federation = self._federation
        if hello.federation == federation.digest():
            return
        raise AttestationRefused(
            Refusal.BINDING, _mismatch(shard=hello.revision, lead=federation.revision)
        )


class Joining(_Peer):
    """The shard's side of one connection. A message that is refused changes nothing.

    shard: which one this is, from 0. expected_receipt_key: the lead's, if the shard's ledger knows
    it. identity: signs this shard's offers to workers, once it is deputed. policy: what
    `circumstances` need collateral for. Raises ConfigError if the federation has no shards.
    """

    def __init__(
        self,
        federation: Federation,
        shard: int,
        *,
        provider: EvidenceProvider,
        code_id: bytes,
        expected_receipt_key: bytes | None = None,
        entropy: Entropy = os.urandom,
    ) -> None:
        super().__init__(federation, provider, code_id, entropy)
        self._shard = shard
        self._expected = expected_receipt_key
        self._ephemeral: HybridKey | None = HybridKey(entropy)
        self._said: tuple[ShardWelcome, ShardHello] | None = None
        self.identity = Identity.generate(entropy)

    def __repr__(self) -> str:
        return f"Joining(shard={self._shard}, identity={self.identity!r})"

    def hello(self, welcome: ShardWelcome) -> ShardHello:
        """Returns the answer to a welcome.

        Raises AttestationRefused if another federation or another revision is served there.
        """
        if self._said is not None or self._ephemeral is None:
            raise LocalProtocolError("a shard joins once with the same keys")

        # 1. The lead serves the federation that this shard has the charter of.
        federation = self._federation
        if welcome.federation != federation.id:
            raise AttestationRefused(
                Refusal.BINDING,
                f"the lead serves {welcome.federation.hex()}, and this shard has the charter of "
                f"{federation.id.hex()}",
            )
        if welcome.revision != federation.revision:
            raise AttestationRefused(
                Refusal.BINDING, _mismatch(shard=federation.revision, lead=welcome.revision)
            )

        # 2. Prove what this is, about the lead's nonce and keys that are used here alone.
        blank = ShardHello(
            federation.digest(),
            federation.revision,
            self._shard,
            self.identity.public,
            self._ephemeral.public,
            self._entropy(_NONCE_BYTES),
            _NO_EVIDENCE,
            UNSIGNED,
        )
        evidence = self._evidence(_hello_data(welcome, blank))
        hello = self.identity.sign(replace(blank, evidence=evidence))
        self._said = welcome, hello
        return hello

    def finish(
        self, admitted: ShardAdmitted, circumstances: Circumstances
    ) -> tuple[PeerChannel, Deputy]:
        """Returns the channel to the lead, and its word to workers.

        Raises AttestationRefused or OpenError.
        """
        if self._said is None or self._ephemeral is None:
            raise LocalProtocolError("a shard says hello first, and joins once with the same keys")
        welcome, hello = self._said

        # 1. The lead is the one that this shard knows, if it knows one, and has signed this.
        if self._expected not in (None, admitted.receipt_key):
            raise AttestationRefused(
                Refusal.BINDING,
                f"the lead's receipt key is {admitted.receipt_key.hex()}, and this shard has "
                f"worked for {self._expected.hex() if self._expected else ''}: is this the lead's "
                "address, and was its state not replaced by a new one?",
            )
        check_signature(admitted, admitted.receipt_key)

        # 2 to 5. Its platform vouches for our own code, about this hello and this answer.
        data = _admitted_data(welcome, hello, admitted)
        self._verify(admitted.evidence, data, circumstances)

        # 6. It has deputed this shard, and no other.
        deputy = admitted.deputy
        require_deputy(deputy, receipt_key=admitted.receipt_key, federation=welcome.federation)
        if (deputy.shard, deputy.key) != (hello.shard, hello.key):
            raise OpenError("Deputy")

        # 7. The secret opens. The key that opened it is gone then.
        info = _info(welcome, hello)
        secret = self._ephemeral.open(admitted.sealed_secret, info=info)
        self._ephemeral = None
        to_shard, to_lead = _keys(secret, welcome, hello, admitted)
        return PeerChannel(sending=to_lead, receiving=to_shard), deputy


def _mismatch(*, shard: int, lead: int) -> str:
    """Says whose charter is to be replaced. shard, lead: their revisions."""
    if shard == lead:
        return f"lead and shard have different charters, both of revision {lead}"
    older = "shard" if shard < lead else "lead"
    cure = (
        "copy federation.toml, its charter and its policy for shards from the lead's folder to "
        "the shard's, and start it again"
        if older == "shard"
        else "let the lead adopt the newer revision first"
    )
    return f"the shard has revision {shard} and the lead {lead}: the {older}'s is older; {cure}"


def _hello_data(welcome: ShardWelcome, hello: ShardHello) -> bytes:
    """Returns what a hello's evidence is about: all of it, and the welcome."""
    return _report_data(_HELLO, encode(welcome), _bare(hello))


def _admitted_data(welcome: ShardWelcome, hello: ShardHello, admitted: ShardAdmitted) -> bytes:
    """Returns what the lead's evidence is about: everything that was said."""
    return _report_data(_ADMITTED, encode(welcome), encode(hello), _bare(admitted))


def _bare(message: ShardHello | ShardAdmitted) -> bytes:
    return encode(message, evidence=_NO_EVIDENCE, signature=UNSIGNED)


def _report_data(label: bytes, *said: bytes) -> bytes:
    return hashlib.sha512(pack(label, *said)).digest()


def _info(welcome: ShardWelcome, hello: ShardHello) -> bytes:
    return pack(_SECRET, encode(welcome), encode(hello))


def _keys(
    secret: bytes, welcome: ShardWelcome, hello: ShardHello, admitted: ShardAdmitted
) -> tuple[bytes, bytes]:
    """Returns the keys to the shard and to the lead."""
    transcript = (encode(welcome), encode(hello), encode(admitted))
    to_shard, to_lead = (
        HKDF(SHA256(), KEY_BYTES, salt=None, info=pack(label, *transcript)).derive(secret)
        for label in (_TO_SHARD, _TO_LEAD)
    )
    return to_shard, to_lead
