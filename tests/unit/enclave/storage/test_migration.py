import os
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ostraka.attestation.claims import in_process
from ostraka.attestation.policy import Policy
from ostraka.attestation.simulation import SimulationPolicy, UnsafeSimulatedPlatform
from ostraka.attestation.verify import Circumstances, read
from ostraka.config import succession
from ostraka.crypto import hpke
from ostraka.crypto.hpke import HybridKey, fingerprint
from ostraka.crypto.identity import Identity
from ostraka.crypto.sealing import Sealer
from ostraka.enclave import migration
from ostraka.enclave.migration import Bundle, Parcel, Request
from ostraka.enclave.platform.simulated import UnsafeSimulatedProvider
from ostraka.enclave.storage import ledger, models
from ostraka.enclave.storage.ledger import HandedOver
from ostraka.enclave.storage.state import Estate
from ostraka.encoding import UNSIGNED, decode, encode, pack
from ostraka.errors import (
    AttestationRefused,
    LocalProtocolError,
    MalformedMessage,
    OpenError,
    ReceiptRefused,
    Refusal,
    StateError,
)
from ostraka.messages import Charter
from ostraka.protocol.client import Client

NOW = 1_800_000_000
PLATFORM = UnsafeSimulatedPlatform(b"p" * 32, issued=NOW - 1000)
OLD, NEW, EVIL = b"\1" * 32, b"\2" * 32, b"\3" * 32
CIRCUMSTANCES = Circumstances(NOW, {"collateral": PLATFORM.collateral()}, unsafe_simulation=True)


def provider(code, platform=PLATFORM):
    return UnsafeSimulatedProvider(platform, code)


def code_id(code):
    return read(provider(code).evidence(bytes(64))).code_id


def policy(*codes):
    return Policy(
        evidence=("simulation",),
        unsafe_simulation=True,
        tees=(SimulationPolicy(root=(PLATFORM.root_digest,), mrenclave=codes),),
    )


def follows(key, *codes):
    return tuple(succession(key, code_id(code)) for code in codes)


POLICY = policy(OLD, NEW)


@dataclass
class Real:
    """A provider that says it is no simulation."""

    kind = "sgx"
    code: bytes

    def evidence(self, report_data):
        return provider(self.code).evidence(report_data)


class Pair:
    """An old enclave with two rounds behind it, and a new one with an empty folder."""

    def __init__(self, life, successors=(NEW,)):
        self.life = life
        self.old = life.founded("old", Sealer(b"o" * 32, code_id(OLD)))
        self.charter = life.charter(2, successors=follows(self.old.receipt_key, *successors))
        life.publish(self.old, 2)
        self.old.adopt(self.charter)
        self.new = life.open("new", Sealer(b"n" * 32, code_id(NEW)))

    def request(self, state=None, code=NEW, federation=None):
        digest = federation or self.charter.federation.digest()
        return migration.request(state or self.new, provider(code), federation=digest)

    def export(self, request=None, **changes):
        options = {"provider": provider(OLD), "policy": POLICY, "circumstances": CIRCUMSTANCES}
        return migration.export(self.old, request or self.request(), **{**options, **changes})

    def take_over(self, bundle, state=None, **changes):
        options = {
            "charter": self.charter,
            "provider": provider(NEW),
            "policy": POLICY,
            "circumstances": CIRCUMSTANCES,
        }
        return migration.take_over(state or self.new, bundle, **{**options, **changes})

    def reopen(self):
        self.new.close()
        self.new = self.life.open("new", self.new.sealer)


@pytest.fixture
def pair(life):
    return Pair(life)


def test_the_successor_goes_on_with_the_next_round(pair, life):
    exported = pair.export()
    assert exported.successor == code_id(NEW)
    assert not exported.again
    told = pair.take_over(exported.bundle)
    assert told == migration.TakenOver(
        origin=code_id(OLD), receipt_key=pair.old.receipt_key, rounds=2, revision=2
    )
    for _ in range(2):
        assert pair.new.published() == pair.old.published()
        assert pair.new.charters == pair.old.charters
        assert np.array_equal(pair.new.last_state.model, pair.old.last_state.model)
        assert np.array_equal(pair.new.last_state.moments, pair.old.last_state.moments)
        assert pair.new.handed_over_from == code_id(OLD)
        pair.reopen()
    assert not pair.new.migration.exists()
    offer = pair.new.start(evidence="simulation").open_round().offer
    assert offer.number == 3
    client = Client(
        "a", Identity(bytes(32)), pair.new.federation, pair.old.receipt_key, pair.old.head
    )
    client.join(offer, in_process(offer, pair.new.receipt_key))
    life.publish(pair.new)
    assert pair.new.handed_over_from is None


def test_the_predecessor_is_retired_before_the_bundle_leaves(pair, monkeypatch):
    request = pair.request()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _full)
        with pytest.raises(OSError, match="No space"):
            pair.export(request)
    assert pair.old.handed_over_to is None
    pair.export(request)
    pair.old.close()
    pair.old = pair.life.open("old", pair.old.sealer)
    with pytest.raises(StateError, match=code_id(NEW).hex()):
        pair.old.start(evidence="simulation")


def _full(*_):
    raise OSError(28, "No space left on device")


def test_a_predecessor_that_died_may_export_again_to_the_same_request(pair):
    request = pair.request()
    first = pair.export(request)
    pair.old.close()
    pair.old = pair.life.open("old", pair.old.sealer)
    second = pair.export(request)
    assert second.again
    assert second.bundle != first.bundle
    pair.take_over(first.bundle)
    assert pair.new.head == pair.old.head


def test_a_request_whose_evidence_is_written_in_another_way_is_the_same_request(pair):
    """Who carries it can add bytes behind a quote: the state is not lost to its successor."""
    request = decode(Request, pair.request())
    pair.export(encode(request))
    padded = replace(request.evidence, document=request.evidence.document + bytes(9))
    second = pair.export(encode(replace(request, evidence=padded)))
    assert second.again
    pair.take_over(second.bundle)
    assert pair.new.head == pair.old.head


def test_a_successor_may_ask_again_and_has_the_same_key(pair):
    request = pair.request()
    pair.reopen()
    assert decode(Request, pair.request()).key == decode(Request, request).key
    bundle = pair.export(request).bundle
    pair.request()
    pair.take_over(bundle)


def test_no_second_instance_of_the_same_code_gets_the_state(pair, life):
    """It is listed, measured and proved like the first; two would be a fork."""
    pair.export()
    twin = life.open("twin", Sealer(b"t" * 32, code_id(NEW)))
    with pytest.raises(StateError, match="no other can have it"):
        pair.export(pair.request(twin))


def test_the_state_can_move_on_again(pair, life):
    pair.take_over(pair.export().bundle)
    third = life.open("third", Sealer(b"3" * 32, code_id(EVIL)))
    charter = life.charter(3, successors=follows(pair.new.receipt_key, EVIL))
    pair.new.adopt(charter)
    life.publish(pair.new)
    both = policy(NEW, EVIL)
    request = pair.request(third, EVIL, charter.federation.digest())
    exported = migration.export(
        pair.new, request, provider=provider(NEW), policy=both, circumstances=CIRCUMSTANCES
    )
    pair.take_over(exported.bundle, third, provider=provider(EVIL), policy=both)
    assert third.published() == pair.new.published()
    assert third.handed_over_from == code_id(NEW)


def test_the_same_code_on_another_machine_can_be_a_successor(life):
    """As after an update of the processor's microcode, which changes the sealing key."""
    pair = Pair(life, successors=(OLD,))
    moved = life.open("moved", Sealer(b"m" * 32, code_id(OLD)))
    exported = pair.export(pair.request(moved, OLD))
    pair.take_over(exported.bundle, moved, provider=provider(OLD))
    assert moved.head == pair.old.head


def changed(request, **changes):
    return encode(replace(decode(Request, request), **changes))


def other_key(pair):
    return changed(pair.request(), key=HybridKey().public)


def old_federation(pair):
    return pair.request(federation=pair.old.charters[0].federation.digest())


def claimed_federation(pair):
    return changed(old_federation(pair), federation=pair.charter.federation.digest())


def evil_code(pair):
    evil = pair.life.open("evil", Sealer(b"e" * 32, code_id(EVIL)))
    return pair.request(evil, EVIL)


def other_platform(pair):
    other = UnsafeSimulatedPlatform(b"q" * 32, issued=NOW - 1000)
    request = decode(Request, pair.request())
    data = migration._request_data(request.key, request.federation)
    return encode(replace(request, evidence=provider(NEW, other).evidence(data)))


def bundle_s_evidence(pair):
    """Evidence that the new enclave gave about something else."""
    evidence = provider(NEW).evidence(bytes(64))
    return changed(pair.request(), evidence=evidence)


EXPORTS = {
    "another key than the evidence is about": (other_key, {}, Refusal.BINDING),
    "an older revision": (old_federation, {}, Refusal.BINDING),
    "evidence about an older revision": (claimed_federation, {}, Refusal.BINDING),
    "evidence about something else": (bundle_s_evidence, {}, Refusal.BINDING),
    "code that the policy does not list": (evil_code, {}, Refusal.MEASUREMENT),
    "code that the authority did not sign": (
        evil_code,
        {"policy": policy(OLD, NEW, EVIL)},
        Refusal.MEASUREMENT,
    ),
    "a policy without the successor": (Pair.request, {"policy": policy(OLD)}, Refusal.MEASUREMENT),
    "another root": (other_platform, {}, Refusal.ROOT),
    "a policy without simulation": (
        Pair.request,
        {"policy": replace(POLICY, unsafe_simulation=False)},
        Refusal.SIMULATION_POLICY,
    ),
    "simulation that nobody asked for": (
        Pair.request,
        {"circumstances": replace(CIRCUMSTANCES, unsafe_simulation=False)},
        Refusal.SIMULATION_FLAG,
    ),
    "a simulated successor of a real enclave": (
        Pair.request,
        {"provider": Real(OLD)},
        Refusal.KIND,
    ),
}


@pytest.mark.parametrize("what", EXPORTS)
def test_the_state_leaves_for_no_other(pair, what):
    make, changes, reason = EXPORTS[what]
    with pytest.raises(AttestationRefused) as caught:
        pair.export(make(pair), **changes)
    assert caught.value.reason == reason
    assert pair.old.handed_over_to is None
    pair.export()


def test_a_successor_that_is_not_listed_is_named(life):
    pair = Pair(life, successors=())
    (line,) = follows(pair.old.receipt_key, NEW)
    with pytest.raises(AttestationRefused, match=f"a revision that lists {line.hex()}"):
        pair.export()


def test_nothing_leaves_while_an_outcome_waits_to_be_confirmed(pair):
    """Its proposal was shown by this enclave: the successor would not know of it."""
    request = pair.request()
    pending = pair.life.hold(pair.old)
    with pytest.raises(StateError, match="waits to be confirmed"):
        pair.export(request)
    assert pair.old.handed_over_to is None
    pair.life.release(pair.old)
    pair.take_over(pair.export(request).bundle)
    assert pair.new.head == pending.receipt


UNFIT = {
    "the code alone": lambda pair: (code_id(NEW),),
    "the code after another enclave": lambda pair: follows(b"x" * 32, NEW),
    "other code after this enclave": lambda pair: follows(pair.old.receipt_key, EVIL),
}


@pytest.mark.parametrize("what", UNFIT)
def test_the_authority_s_word_is_about_this_enclave_and_that_code(pair, life, what):
    charter = life.charter(3, successors=UNFIT[what](pair))
    pair.old.adopt(charter)
    with pytest.raises(AttestationRefused, match="is not among the successors"):
        pair.export(pair.request(federation=charter.federation.digest()))
    assert pair.old.handed_over_to is None


def test_a_request_that_cannot_be_read_is_malformed(pair):
    with pytest.raises(MalformedMessage):
        pair.export(b"please")


def test_an_enclave_that_is_not_what_its_state_says_retires_for_nobody(pair):
    with pytest.raises(LocalProtocolError, match="attests to other code"):
        pair.export(provider=provider(EVIL))
    assert pair.old.handed_over_to is None
    with pytest.raises(LocalProtocolError, match="attests to other code"):
        pair.request(code=OLD)


def forge(pair, code=OLD, *, estate=None, to=None, info=None, **changes):
    """What a host can do that knows the format: seal something of its own to the request's key."""
    request = decode(Request, pair.request())
    names = {
        "origin": code_id(code),
        "successor": code_id(NEW),
        "federation": request.federation,
        "key": fingerprint(request.key),
        **changes,
    }
    key = bytes(32)
    info = pack(b"ostraka/migration-key/v2", *names.values()) if info is None else info
    estate = estate or estate_of(pair, request)
    parcel = Parcel(
        **names,
        sealed_key=hpke.seal(to or request.key, key, info=info),
        estate=Sealer(key, names["successor"]).seal("estate", encode(estate)),
    )
    return encode(Bundle(parcel, provider(code).evidence(migration._bundle_data(parcel))))


def estate_of(pair, request=None):
    request = request or decode(Request, pair.request())
    return pair.life.estate(pair.old, code_id(NEW), fingerprint(request.key))


def test_a_forger_knows_the_format(pair):
    """Else none of the forgeries below would prove anything."""
    pair.take_over(forge(pair))
    assert pair.new.head == pair.old.head


def without_proof(pair):
    """The host makes all of it, and its evidence is of code that nobody lists."""
    return forge(pair, EVIL)


def borrowed_proof(pair):
    """True evidence of the old enclave, about another bundle."""
    true, forged = decode(Bundle, pair.export().bundle), decode(Bundle, forge(pair))
    return encode(replace(forged, evidence=true.evidence))


def request_s_proof(pair):
    request, forged = decode(Request, pair.request()), decode(Bundle, forge(pair))
    return encode(replace(forged, evidence=request.evidence))


def parcel_of(pair, **changes):
    true = decode(Bundle, pair.export().bundle)
    return encode(replace(true, parcel=replace(true.parcel, **changes)))


def known_identity(pair):
    """An identity that the host knows, with a chain of receipts of its own."""
    host = pair.life.founded("host", Sealer(b"h" * 32, code_id(EVIL)), charter=pair.charter)
    pair.life.publish(host)
    request = decode(Request, pair.request())
    estate = pair.life.estate(host, code_id(NEW), fingerprint(request.key))
    return forge(pair, EVIL, estate=estate)


def stranger_s_seed(pair):
    return forge(pair, estate=replace(estate_of(pair), seed=b"x" * 32))


def another_model(pair):
    return forge(pair, estate=replace(estate_of(pair), state=bytes(16)))


def missing_record(pair):
    estate = estate_of(pair)
    return forge(pair, estate=replace(estate, records=estate.records[:1] + estate.records[2:]))


def not_retired(pair):
    estate = estate_of(pair)
    return forge(pair, estate=replace(estate, records=estate.records[:-1]))


def retired_for_another(pair):
    estate = estate_of(pair)
    end = encode(HandedOver(code_id(NEW), b"x" * 32))
    return forge(pair, estate=replace(estate, records=(*estate.records[:-1], end)))


def older_revision(pair):
    """The charter that names the successor is left out."""
    estate = estate_of(pair)
    told = (*estate.records[:3], estate.records[-1])
    return forge(pair, estate=replace(estate, records=told))


def with_record(pair, index, change):
    estate = estate_of(pair)
    told = list(estate.records)
    told[index] = encode(change(ledger.decode(told[index])))
    return forge(pair, estate=replace(estate, records=tuple(told)))


def forged_receipt(pair):
    def change(record):
        receipt = replace(record.certified.receipt, signature=bytes(64))
        return replace(record, certified=replace(record.certified, receipt=receipt))

    return with_record(pair, 2, change)


def votes(change):
    """Other votes in the certificate of the last receipt."""

    def bundle(pair):
        def edit(record):
            certificate = record.certified.certificate
            certificate = replace(certificate, votes=change(certificate.votes))
            return replace(record, certified=replace(record.certified, certificate=certificate))

        return with_record(pair, 2, edit)

    return bundle


def unconfirmed(pair):
    def edit(record):
        return replace(record, certified=replace(record.certified, certificate=None))

    return with_record(pair, 2, edit)


def forged_charter(pair):
    def change(record):
        return replace(record, charter=replace(record.charter, signature=bytes(64)))

    return with_record(pair, 3, change)


def model_without_receipt(pair):
    content = models.to_bytes(pair.life.state_of(9))
    estate = estate_of(pair)
    last = decode(ledger.Published, estate.records[2])
    last = replace(last, state=models.content_digest(content))
    told = (*estate.records[:2], encode(last), *estate.records[3:])
    return forge(pair, estate=replace(estate, records=told, state=content))


def no_records(pair):
    return forge(pair, estate=Estate(b"x" * 32, (), bytes(16)))


BUNDLES = {
    "code that the policy does not list": (without_proof, AttestationRefused, Refusal.MEASUREMENT),
    "evidence about another bundle": (borrowed_proof, AttestationRefused, Refusal.BINDING),
    "evidence of the successor itself": (request_s_proof, AttestationRefused, "another sender"),
    "another sender than the evidence says": (
        lambda pair: forge(pair, origin=code_id(EVIL)),
        AttestationRefused,
        "another sender",
    ),
    "an identity that the host knows": (known_identity, AttestationRefused, Refusal.MEASUREMENT),
    "another estate than the evidence is about": (
        lambda pair: parcel_of(pair, estate=b""),
        AttestationRefused,
        Refusal.BINDING,
    ),
    "another key than the evidence is about": (
        lambda pair: parcel_of(pair, sealed_key=b""),
        AttestationRefused,
        Refusal.BINDING,
    ),
    "another successor": (
        lambda pair: forge(pair, successor=code_id(EVIL)),
        StateError,
        "another request",
    ),
    "another request": (lambda pair: forge(pair, key=b"x" * 32), StateError, "another request"),
    "another federation": (
        lambda pair: forge(pair, federation=b"x" * 32),
        StateError,
        "another request",
    ),
    "a key that is sealed to another": (
        lambda pair: forge(pair, to=HybridKey().public),
        OpenError,
        "sealed key",
    ),
    "a key that is sealed under other names": (
        lambda pair: forge(pair, info=b""),
        OpenError,
        "sealed key",
    ),
    "another identity's seed": (stranger_s_seed, OpenError, "identity"),
    "another model": (another_model, OpenError, "state"),
    "a ledger that lacks a record": (missing_record, MalformedMessage, "does not follow"),
    "a ledger without an end": (not_retired, MalformedMessage, "must have been handed over"),
    "a ledger that ends for another": (retired_for_another, OpenError, "handed to another"),
    "a ledger that does not reach this revision": (
        older_revision,
        OpenError,
        "of another federation",
    ),
    "no ledger at all": (no_records, MalformedMessage, "must have been handed over"),
    "bytes that are no bundle": (
        lambda pair: pair.request() and b"please",
        MalformedMessage,
        "field",
    ),
    "a receipt that the identity has not signed": (forged_receipt, OpenError, "Receipt"),
    "a receipt that nobody has confirmed": (unconfirmed, ReceiptRefused, "nobody confirms"),
    "a receipt that too few have confirmed": (
        votes(lambda each: each[:1]),
        ReceiptRefused,
        "1 confirmations and needs 2",
    ),
    "a receipt with a vote counted twice": (
        votes(lambda each: (each[0], each[0])),
        ReceiptRefused,
        "counts a voter twice",
    ),
    "a charter that the authority has not signed": (forged_charter, OpenError, "Charter"),
    "a model that is not the last receipt's": (model_without_receipt, OpenError, "model"),
}


@pytest.mark.parametrize("what", BUNDLES)
def test_the_successor_begins_with_nothing_else(pair, what):
    make, error, message = BUNDLES[what]
    bundle = make(pair)
    with pytest.raises(error, match=message):
        pair.take_over(bundle)
    assert pair.new.fresh
    pair.reopen()
    pair.take_over(pair.export().bundle)
    assert pair.new.head == pair.old.head


SETTINGS = {
    "a policy without the predecessor": ({"policy": policy(NEW)}, Refusal.MEASUREMENT),
    "a policy without simulation": (
        {"policy": replace(POLICY, unsafe_simulation=False)},
        Refusal.SIMULATION_POLICY,
    ),
    "simulation that nobody asked for": (
        {"circumstances": replace(CIRCUMSTANCES, unsafe_simulation=False)},
        Refusal.SIMULATION_FLAG,
    ),
    "a real successor of a simulated enclave": ({"provider": Real(NEW)}, Refusal.KIND),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_the_successor_verifies_its_predecessor(pair, what):
    changes, reason = SETTINGS[what]
    bundle = pair.export().bundle
    with pytest.raises(AttestationRefused) as caught:
        pair.take_over(bundle, **changes)
    assert caught.value.reason == reason
    pair.take_over(bundle)


def test_the_successor_asks_for_the_authority_s_word_itself(life):
    """A predecessor that did not, and else is what it should be, gives a bundle for nothing."""
    pair = Pair(life, successors=())
    with pytest.raises(AttestationRefused, match="is not among the successors"):
        pair.take_over(forge(pair))
    assert pair.new.fresh


LENIENT = policy(OLD, NEW, EVIL)


def test_a_host_that_writes_the_policy_cannot_make_up_a_predecessor(pair):
    """Its own code, on a genuine platform, tells of an enclave that never was: the real charter,
    and a key that the host knows.
    """
    bundle = known_identity(pair)
    with pytest.raises(AttestationRefused, match="is not among the successors"):
        pair.take_over(bundle, policy=LENIENT)
    assert pair.new.fresh
    pair.take_over(pair.export().bundle)
    assert pair.new.receipt_key == pair.old.receipt_key


def host_s_bundle(pair):
    """All of it is in order, in a federation of the host's own."""
    authority = Identity(b"h" * 32)

    def charter(**changes):
        federation = replace(pair.charter.federation, authority=authority.public, **changes)
        return authority.sign(Charter(federation, UNSIGNED))

    sealer = Sealer(b"h" * 32, code_id(EVIL))
    host = pair.life.founded("host", sealer, charter=charter(successors=()))
    agreed = charter(revision=3, successors=follows(host.receipt_key, NEW))
    host.adopt(agreed)
    request = pair.request(federation=agreed.federation.digest())
    exported = migration.export(
        host, request, provider=provider(EVIL), policy=LENIENT, circumstances=CIRCUMSTANCES
    )
    return exported.bundle, agreed


def test_a_host_cannot_be_the_authority_of_its_bundle(pair):
    bundle, charter = host_s_bundle(pair)
    with pytest.raises(AttestationRefused) as caught:
        pair.take_over(bundle, policy=LENIENT)
    assert caught.value.reason == Refusal.AUTHORITY
    assert pair.new.fresh
    pair.take_over(bundle, policy=LENIENT, charter=charter)
    assert pair.new.federation.authority != pair.old.federation.authority


def test_a_bundle_opens_only_where_its_request_was_made(pair, life):
    bundle = pair.export().bundle
    other = life.open("other", pair.new.sealer)
    with pytest.raises(StateError, match=r"migration\.sealed: is missing"):
        pair.take_over(bundle, other)
    pair.request(other)
    with pytest.raises(StateError, match="answers another request"):
        pair.take_over(bundle, other)


def test_a_folder_with_state_takes_nothing_over(pair):
    with pytest.raises(StateError, match="already"):
        migration.request(pair.old, provider(OLD), federation=bytes(32))
    bundle = pair.export().bundle
    pair.take_over(bundle)
    with pytest.raises(StateError, match="already"):
        pair.take_over(bundle)


def test_nothing_is_founded_while_a_hand_over_is_under_way(pair, life):
    pair.request()
    with pytest.raises(StateError, match="a hand-over to this enclave is under way"):
        pair.new.found(life.charter(), life.state_of(0))


def test_a_request_that_was_copied_to_other_code_does_not_open(pair, life):
    pair.request()
    other = life.open("other", Sealer(b"n" * 32, code_id(EVIL)))
    shutil.copy(pair.new.migration.path, other.migration.path)
    with pytest.raises(StateError, match="does not open"):
        pair.take_over(pair.export().bundle, other)


def test_no_secret_is_in_what_travels_or_prints(pair):
    exported = pair.export()
    estate = estate_of(pair)
    for secret in (estate.seed, estate.state[16:], pair.old.receipt_key):
        assert secret not in exported.bundle
        assert secret not in pair.request()
    assert estate.seed.hex() not in repr(exported)
    assert "bundle" not in repr(exported)
    assert "seed" not in repr(migration._pending(pair.new))


def test_a_lead_is_not_retired_for_code_that_could_not_open_its_slices(pair, monkeypatch):
    monkeypatch.setattr(type(pair.old), "leads", True)
    with pytest.raises(StateError, match="under the same code alone"):
        pair.export()
    monkeypatch.undo()
    assert not pair.export().again
