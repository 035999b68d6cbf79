"""Which enclave a worker serves: the one that it was told, or one that proves what it is."""

import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ostraka.attestation.claims import Binding, DeputyBinding, KeyBinding
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.core.gram import NumpyKernel
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import (
    AttestationRefused,
    ConfigError,
    MalformedMessage,
    OpenError,
    Refusal,
    RemoteProtocolError,
)
from ostraka.messages import SIMULATION, ChannelOffer, Charter, Deputy, Evidence, WorkerHello
from ostraka.transport.ostraka_pb2 import EnclaveSays, Proof, Welcome, WorkerSays
from ostraka.worker import EnclavePin, Staff, Verifier
from ostraka.worker.session import Session

AUTHORITY, ENCLAVE, ME, OTHER = (Identity(bytes([seed]) * 32) for seed in (1, 2, 3, 4))
ID = b"f" * 32
CODE = b"m" * 32
NOW = int(time.time())
PLATFORM = UnsafeSimulatedPlatform(b"\x07" * 32, issued=NOW - 3600)
STRANGER = UnsafeSimulatedPlatform(b"\x08" * 32, issued=NOW - 3600)
POLICY = f"""
version = 1
evidence = ["simulation"]
unsafe_simulation = true
[federation]
authority = "{AUTHORITY.public.hex()}"
id = "{ID.hex()}"
workers = ["{ME.public.hex()}", "{OTHER.public.hex()}"]
[simulation]
root = ["{PLATFORM.root_digest.hex()}"]
mrenclave = ["{CODE.hex()}"]
collateral = "collateral.json"
"""
TERMS = Terms(Manifest.flat(40), f=1)
FEDERATION = Federation(
    TERMS,
    tuple(Member(f"client-{row}", Identity(bytes([9, row]) * 16).public) for row in range(6)),
    (Member("me", ME.public), Member("other", OTHER.public)),
    AUTHORITY.public,
    ID,
)


@dataclass
class Meeting:
    """One connection of a worker: what the other end says, and what the worker makes of it."""

    pin: EnclavePin
    key: Identity = ENCLAVE
    said: list[WorkerSays] = field(default_factory=list)
    deputy: bytes = b""

    def __post_init__(self) -> None:
        self.session = Session(Staff("me", ME, NumpyKernel(), self.pin), self.said.append)
        welcome = Welcome(
            nonce=b"n" * 32, receipt_key=self.key.public, federation=ID, deputy=self.deputy
        )
        self.session.greet(EnclaveSays(welcome=welcome))
        self.hello = decode(WorkerHello, self.said[0].hello)

    def prove(
        self,
        *,
        signed: Federation = FEDERATION,
        signer: Identity = AUTHORITY,
        platform: UnsafeSimulatedPlatform = PLATFORM,
        code: bytes = CODE,
        bound: Any = None,
        **changes: bytes,
    ) -> None:
        charter = signer.sign(Charter(signed, UNSIGNED))
        binding = KeyBinding(self.hello.challenge, self.key.public, signed.digest())
        report = (bound(self) if bound else replace(binding, **changes)).report_data()
        quote = platform.quote(report, mrenclave=code, mrsigner=bytes(32))
        evidence = Evidence(SIMULATION, quote, (platform.root_der,))
        proof = Proof(charter=encode(charter), evidence=encode(evidence))
        self.session.admit(EnclaveSays(proof=proof))


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "collateral.json").write_bytes(PLATFORM.collateral())
    return tmp_path


def chosen(folder: Path, given: Identity | None = None, **options: Any) -> EnclavePin:
    verifier = Verifier.of(folder / "policy.toml", **{"unsafe_simulation": True} | options)
    key = None if given is None else given.public.hex()
    return EnclavePin.chosen(folder / "me.key", receipt_key=key, verifier=verifier)


def test_an_enclave_that_proves_itself_is_served_and_remembered(folder, caplog):
    caplog.set_level(logging.INFO)
    Meeting(chosen(folder)).prove()
    assert ENCLAVE.public.hex() in (folder / "me.key.enclave").read_text()
    Meeting(chosen(folder)).prove()
    assert [each.getMessage() for each in caplog.records] == ["EnclaveRemembered"]


def test_every_connection_has_a_challenge_of_its_own(folder):
    pin = chosen(folder)
    assert len({Meeting(pin).hello.challenge for _ in range(3)}) == 3


REFUSED: dict[str, dict[str, Any]] = {
    "evidence for another's nonce": {"nonce": b"n" * 32},
    "evidence for another key": {"receipt_key": OTHER.public},
    "evidence for another federation": {"federation": bytes(32)},
    "evidence for a client": {
        "bound": lambda it: Binding(it.hello.challenge, b"", it.key.public, FEDERATION.digest())
    },
    "code that the policy does not list": {"code": b"x" * 32},
    "a platform that the policy does not list": {"platform": STRANGER},
    "another authority's charter": {"signer": OTHER},
    "another federation of the same authority": {"signed": replace(FEDERATION, id=b"g" * 32)},
    "a charter that has expired": {"signed": replace(FEDERATION, expires=NOW - 3600)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_any_other_is_refused_and_not_remembered(folder, what):
    pin = chosen(folder)
    with pytest.raises(AttestationRefused):
        Meeting(pin).prove(**REFUSED[what])
    assert not (folder / "me.key.enclave").exists()
    Meeting(pin).prove()  # The right one is back.


def test_simulation_needs_the_operators_word_too(folder):
    with pytest.raises(AttestationRefused, match="did not ask"):
        Meeting(chosen(folder, unsafe_simulation=False)).prove()


NO_PROOFS = {
    "nothing": EnclaveSays(),
    "an offer": EnclaveSays(offer=b"offer"),
    "an empty proof": EnclaveSays(proof=Proof()),
    "a proof of noise": EnclaveSays(proof=Proof(charter=b"noise", evidence=b"noise")),
}


@pytest.mark.parametrize("what", NO_PROOFS)
def test_what_is_no_proof_ends_the_stream(folder, what):
    with pytest.raises(RemoteProtocolError):
        Meeting(chosen(folder)).session.admit(NO_PROOFS[what])


def test_a_new_enclave_takes_the_old_ones_place_by_the_operators_word_only(folder):
    Meeting(chosen(folder)).prove()
    with pytest.raises(RemoteProtocolError, match="--receipt-key"):
        Meeting(chosen(folder), key=OTHER)
    with pytest.raises(AttestationRefused):
        Meeting(chosen(folder, given=OTHER), key=OTHER).prove(code=b"x" * 32)
    Meeting(chosen(folder)).prove()
    Meeting(chosen(folder, given=OTHER), key=OTHER).prove()
    Meeting(chosen(folder), key=OTHER).prove()
    with pytest.raises(RemoteProtocolError, match="another enclave answers"):
        Meeting(chosen(folder))


def test_whom_the_key_names_need_not_prove_anything(tmp_path):
    pin = EnclavePin.chosen(tmp_path / "me.key", receipt_key=ENCLAVE.public.hex(), verifier=None)
    Meeting(pin).session.admit(EnclaveSays(proof=Proof()))
    with pytest.raises(RemoteProtocolError, match="--receipt-key"):
        Meeting(pin, key=OTHER)
    assert list(tmp_path.iterdir()) == []


def test_with_neither_nobody_is_served(tmp_path):
    with pytest.raises(ConfigError, match=r"--policy .* --receipt-key"):
        EnclavePin.chosen(tmp_path / "me.key", receipt_key=None, verifier=None)


def test_what_cannot_be_written_down_is_remembered_until_the_end(folder, caplog):
    verifier = Verifier.of(folder / "policy.toml", unsafe_simulation=True)
    pin = EnclavePin.chosen(folder / "absent" / "me.key", receipt_key=None, verifier=verifier)
    Meeting(pin).prove()
    with pytest.raises(RemoteProtocolError):
        Meeting(pin, key=OTHER)
    (kept,) = caplog.records
    assert kept.getMessage() == "EnclaveNotKept"
    assert "No such file" in kept.ostraka_fields["why"]


@pytest.mark.parametrize("content", ["", "x", "ostraka-enclave-key-v1 00", "a\nb\n", b"\xff"])
def test_a_spoilt_memory_is_an_error_and_no_first_use(folder, content):
    file = folder / "me.key.enclave"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match="delete it"):
        chosen(folder)


@pytest.mark.parametrize("key", ["", "zz", "00" * 31, "00" * 33])
def test_a_pinned_key_is_32_bytes_of_hex(tmp_path, key):
    with pytest.raises(ConfigError, match="64 hex digits"):
        EnclavePin.chosen(tmp_path / "me.key", receipt_key=key, verifier=None)


def test_collateral_that_is_missing_is_the_operators_fault(folder):
    (folder / "collateral.json").unlink()
    with pytest.raises(ConfigError, match=r"collateral\.json"):
        Meeting(chosen(folder)).prove()


# Shards: the key is the lead's, and a shard has the lead's word for its own.

SHARD = Identity(bytes([5]) * 32)
SHARD_CODE = b"s" * 32
SHARD_POLICY = f"""
version = 1
evidence = ["simulation"]
unsafe_simulation = true
[simulation]
root = ["{PLATFORM.root_digest.hex()}"]
mrenclave = ["{SHARD_CODE.hex()}"]
collateral = "collateral.json"
"""
SHARDED = replace(FEDERATION, shard_policy=SHARD_POLICY)
DEPUTY = ENCLAVE.sign(Deputy(ID, 1, SHARD.public, UNSIGNED))


@pytest.fixture
def sharded(folder) -> EnclavePin:
    """A worker that accepts shards, and whose lead has proved itself."""
    digest = SHARDED.shard_policy_digest.hex()
    pinned = POLICY.replace("[federation]", f'[federation]\nshard_policies = ["{digest}"]')
    (folder / "policy.toml").write_text(pinned)
    Meeting(chosen(folder)).prove(signed=SHARDED)
    return chosen(folder)


def met(pin: EnclavePin, deputy: Deputy = DEPUTY) -> Meeting:
    """A shard answers, with this deputy."""
    return Meeting(pin, deputy=encode(deputy))


def deputed(it: Meeting, **changes: bytes) -> DeputyBinding:
    """What a genuine shard's evidence is about."""
    bound = DeputyBinding(it.hello.challenge, ENCLAVE.public, SHARD.public, SHARDED.digest())
    return replace(bound, **changes)


def prove_shard(it: Meeting, **changes: Any) -> None:
    usual: dict[str, Any] = {"signed": SHARDED, "code": SHARD_CODE, "bound": deputed}
    it.prove(**(usual | changes))


def offered(it: Meeting, signer: Identity) -> list[str]:
    """Has somebody offer work, and returns what the worker answers."""
    offer = ChannelOffer(
        federation=b"c" * 32,
        round_id=b"r" * 32,
        attempt_id=b"a" * 32,
        worker=ME.public,
        point=0,
        masking="exact",
        rows=3,
        columns=16,
        tile=16,
        key=HybridKey().public,
        signature=UNSIGNED,
    )
    before = len(it.said)
    it.session.hear(EnclaveSays(offer=encode(signer.sign(offer))))
    return [str(each.WhichOneof("what")) for each in it.said[before:]]


def test_a_shard_that_its_lead_has_deputed_and_that_proves_itself_is_served(sharded, folder):
    shard = met(sharded)
    prove_shard(shard)
    assert offered(shard, SHARD) == ["accept"]
    assert ENCLAVE.public.hex() in (folder / "me.key.enclave").read_text()
    lead = Meeting(sharded)
    lead.prove(signed=SHARDED)
    assert offered(lead, ENCLAVE) == ["accept"]


def test_with_a_pinned_key_the_leads_word_is_enough(tmp_path):
    pin = EnclavePin.chosen(tmp_path / "me.key", receipt_key=ENCLAVE.public.hex(), verifier=None)
    shard = met(pin)
    shard.session.admit(EnclaveSays(proof=Proof()))
    assert offered(shard, SHARD) == ["accept"]


SIGNERS = {
    "a shard without a deputy": (b"", SHARD),
    "the host with a shard's deputy": (encode(DEPUTY), OTHER),
    "the lead on a shard's stream": (encode(DEPUTY), ENCLAVE),
}


@pytest.mark.parametrize("what", SIGNERS)
def test_no_offer_is_taken_from(what, sharded):
    deputy, signer = SIGNERS[what]
    it = Meeting(sharded, deputy=deputy)
    (prove_shard if deputy else Meeting.prove)(it, signed=SHARDED)
    assert offered(it, signer) == ["sorry"]
    assert offered(it, SHARD if deputy else ENCLAVE) == ["accept"]


DEPUTIES = {
    "that the host signed": OTHER.sign(DEPUTY),
    "that the shard signed itself": SHARD.sign(DEPUTY),
    "that nobody signed": replace(DEPUTY, signature=UNSIGNED),
    "for another key than was signed": replace(DEPUTY, key=OTHER.public),
    "for another federation": ENCLAVE.sign(replace(DEPUTY, federation=b"g" * 32)),
}


@pytest.mark.parametrize("what", DEPUTIES)
def test_a_worker_refuses_a_deputy(what, sharded):
    with pytest.raises(OpenError, match="Deputy"):
        met(sharded, DEPUTIES[what])
    prove_shard(met(sharded))


def test_a_deputy_that_is_none_ends_the_stream(sharded):
    with pytest.raises(MalformedMessage):
        Meeting(sharded, deputy=b"noise")


def test_a_lead_that_the_host_has_made_up_vouches_for_no_shard(sharded):
    """Its deputy is signed by the receipt key that it shows, which is not the pinned one."""
    with pytest.raises(RemoteProtocolError, match="another enclave answers"):
        Meeting(sharded, key=OTHER, deputy=encode(OTHER.sign(DEPUTY)))


def test_no_shard_introduces_a_lead(folder, sharded):
    """A worker that knows no lead yet would pin whichever key the host shows it."""
    (folder / "me.key.enclave").unlink()
    newcomer = chosen(folder)
    with pytest.raises(RemoteProtocolError, match="its lead has not proved itself"):
        met(newcomer)
    Meeting(newcomer).prove(signed=SHARDED)
    prove_shard(met(newcomer))


SHARDS_REFUSED: dict[str, tuple[dict[str, Any], Refusal]] = {
    "a shard with code that the policy for shards does not list": (
        {"code": b"x" * 32},
        Refusal.MEASUREMENT,
    ),
    "a shard with code that only the worker's own policy lists": (
        {"code": CODE},
        Refusal.MEASUREMENT,
    ),
    "a shard on a platform that is not listed": ({"platform": STRANGER}, Refusal.ROOT),
    "a shard of a federation that has none": (
        {"signed": FEDERATION, "bound": None},
        Refusal.KIND,
    ),
    "a shard under a policy that this worker does not pin": (
        {"signed": replace(SHARDED, shard_policy=SHARD_POLICY + "#")},
        Refusal.SHARDS,
    ),
    "evidence about another shard's key": (
        {"bound": lambda it: deputed(it, key=OTHER.public)},
        Refusal.BINDING,
    ),
    "evidence about another lead's key": (
        {"bound": lambda it: deputed(it, receipt_key=OTHER.public)},
        Refusal.BINDING,
    ),
    "evidence about another nonce": (
        {"bound": lambda it: deputed(it, nonce=b"n" * 32)},
        Refusal.BINDING,
    ),
    "evidence about another federation": (
        {"bound": lambda it: deputed(it, federation=bytes(32))},
        Refusal.BINDING,
    ),
    "evidence of a lead": ({"bound": None}, Refusal.BINDING),
}


@pytest.mark.parametrize("what", SHARDS_REFUSED)
def test_a_worker_refuses(what, sharded):
    changes, reason = SHARDS_REFUSED[what]
    with pytest.raises(AttestationRefused) as refused:
        prove_shard(met(sharded), **changes)
    assert refused.value.reason == reason, str(refused.value)
    prove_shard(met(sharded))


def test_evidence_of_a_shard_does_not_prove_a_receipt_key(sharded):
    """Else the host could show a shard as a lead with the shard's key, to whoever pins none."""
    lead = Meeting(sharded)
    with pytest.raises(AttestationRefused) as refused:
        lead.prove(signed=SHARDED, bound=deputed)
    assert refused.value.reason == Refusal.BINDING


def test_a_charter_of_another_federation_than_the_deputys_is_refused(folder, sharded):
    """The authority may have several; the lead of one deputes nobody in another."""
    other = replace(SHARDED, id=b"g" * 32)
    policy = (folder / "policy.toml").read_text().replace(ID.hex(), other.id.hex())
    (folder / "policy.toml").write_text(policy)
    with pytest.raises(OpenError, match="Deputy"):
        prove_shard(met(chosen(folder)), signed=other)


def test_of_two_leads_that_prove_themselves_at_once_one_is_pinned(folder):
    pin = chosen(folder)
    first, second = Meeting(pin), Meeting(pin, key=OTHER)
    first.prove()
    with pytest.raises(RemoteProtocolError, match="another enclave answers"):
        second.prove()
    assert ENCLAVE.public.hex() in (folder / "me.key.enclave").read_text()


def test_only_a_leads_own_proof_is_written_down(folder, sharded):
    (folder / "me.key.enclave").unlink()
    pin = chosen(folder, given=ENCLAVE)
    prove_shard(met(pin))
    assert not (folder / "me.key.enclave").exists()
    Meeting(pin).prove(signed=SHARDED)
    assert (folder / "me.key.enclave").exists()
