"""A lead and a shard that attest each other, and what a host, a shard or a lead tries instead."""

from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.attestation.verify import Circumstances, read, require_deputy
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity, check_signature
from ostraka.enclave import peering
from ostraka.enclave.peering import Admission, Joining, PeerChannel
from ostraka.enclave.platform.simulated import UnsafeSimulatedProvider
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import (
    AttestationRefused,
    ConfigError,
    LocalProtocolError,
    MalformedMessage,
    OpenError,
    Refusal,
)
from ostraka.messages import Deputy, Evidence, ShardAdmitted, ShardHello, ShardWelcome

NOW = 1_800_000_000
PLATFORM = UnsafeSimulatedPlatform(b"p" * 32, issued=NOW - 1000)
OTHER_MACHINE = UnsafeSimulatedPlatform(b"q" * 32, issued=NOW - 1000)
CODE, LISTED, EVIL = b"\1" * 32, b"\2" * 32, b"\3" * 32
LEAD, HOST = Identity(b"l" * 32), Identity(b"h" * 32)
SHARDS = 3

SHARD_POLICY = f"""\
version = 1
evidence = ["simulation"]
unsafe_simulation = true

[simulation]
root = ["{PLATFORM.root_digest.hex()}"]
mrenclave = ["{CODE.hex()}", "{LISTED.hex()}"]
"""
CLIENTS = tuple(Member(f"client-{i}", bytes([i]) * 32) for i in range(4))
TERMS = Terms(Manifest.flat(20), f=0, distances="inside", tile=16)
FEDERATION = Federation(
    TERMS, CLIENTS, (), b"a" * 32, b"i" * 32, revision=2, shard_policy=SHARD_POLICY
)


def provider(code=CODE, platform=PLATFORM):
    return UnsafeSimulatedProvider(platform, code)


def code_id(of):
    return read(of.evidence(bytes(64))).code_id


def circumstances(platform=PLATFORM, *, now=NOW, flag=True):
    return Circumstances(now, {"collateral": platform.collateral()}, unsafe_simulation=flag)


@dataclass
class Posing:
    """A provider that says it is of another kind, or whose quotes differ."""

    kind: str = "simulation"
    evidence_kind: str = "simulation"
    code: bytes = CODE
    platform: UnsafeSimulatedPlatform = PLATFORM
    quote: dict[str, Any] = field(default_factory=dict)

    def evidence(self, report_data):
        quote = self.platform.quote(report_data, mrenclave=self.code, **self.quote)
        return Evidence(self.evidence_kind, quote, (self.platform.root_der,))


@dataclass
class Meeting:
    """One connection between a lead and a shard, each of which may be another than it should."""

    lead_provider: Any = field(default_factory=provider)
    lead_federation: Federation = FEDERATION
    lead_code: bytes | None = None
    lead: Identity = LEAD
    shard_provider: Any = field(default_factory=provider)
    shard_federation: Federation = FEDERATION
    shard_code: bytes | None = None
    shard: int = 1
    expected: bytes | None = LEAD.public
    circumstances: Circumstances = field(default_factory=circumstances)

    def __post_init__(self):
        self.admission = Admission(
            self.lead_federation,
            self.lead,
            shards=SHARDS,
            provider=self.lead_provider,
            code_id=self.lead_code or code_id(self.lead_provider),
        )
        self.joining = Joining(
            self.shard_federation,
            self.shard,
            provider=self.shard_provider,
            code_id=self.shard_code or code_id(self.shard_provider),
            expected_receipt_key=self.expected,
        )
        self.welcome = sent(self.admission.welcome)

    def hello(self):
        return sent(self.joining.hello(self.welcome))

    def admit(self, hello):
        admitted, channel = self.admission.admit(hello, self.circumstances)
        return sent(admitted), channel

    def finish(self, admitted):
        return self.joining.finish(admitted, self.circumstances)

    def whole(self):
        """Returns the lead's and the shard's end of a channel, and the deputy."""
        admitted, at_lead = self.admit(self.hello())
        at_shard, deputy = self.finish(admitted)
        return at_lead, at_shard, deputy


def sent(message):
    """What arrives of a message: just its bytes."""
    return decode(type(message), encode(message))


@pytest.fixture
def meeting():
    return Meeting()


def talk(one, other):
    for text in (b"", b"keys of a range", bytes(2**20)):
        assert other.open(one.seal(text)) == text
        assert one.open(other.seal(text)) == text


def test_a_lead_and_a_shard_of_the_same_code_share_a_channel(meeting):
    at_lead, at_shard, deputy = meeting.whole()
    talk(at_lead, at_shard)
    check_signature(deputy, LEAD.public)
    assert (deputy.federation, deputy.shard) == (FEDERATION.id, 1)
    assert deputy.key == meeting.joining.identity.public


def test_a_shard_without_a_ledger_takes_the_receipt_key_that_was_proved():
    talk(*Meeting(expected=None).whole()[:2])


def test_machines_may_differ_if_the_policy_for_shards_lists_both():
    roots = f'"{PLATFORM.root_digest.hex()}", "{OTHER_MACHINE.root_digest.hex()}"'
    text = SHARD_POLICY.replace(f'"{PLATFORM.root_digest.hex()}"', roots)
    federation = replace(FEDERATION, shard_policy=text)
    meeting = Meeting(
        lead_federation=federation,
        shard_federation=federation,
        shard_provider=provider(platform=OTHER_MACHINE),
    )
    admitted, at_lead = meeting.admission.admit(meeting.hello(), circumstances(OTHER_MACHINE))
    at_shard, _ = meeting.joining.finish(sent(admitted), circumstances(PLATFORM))
    talk(at_lead, at_shard)


def test_a_federation_without_shards_admits_none_and_has_none():
    alone = replace(FEDERATION, shard_policy="")
    with pytest.raises(ConfigError, match="revision 2 of the federation has no shards"):
        Meeting(lead_federation=alone)
    with pytest.raises(ConfigError, match="has no shards"):
        Meeting(shard_federation=alone)


# What a lead refuses. Each is a meeting with somebody else in the place of the shard.

ANOTHER_TERMS = replace(FEDERATION, terms=replace(TERMS, f=1))
SHARDS_REFUSED = {
    "a shard with a measurement that the policy does not list": (
        {"shard_provider": provider(EVIL)},
        Refusal.MEASUREMENT,
        EVIL.hex(),
    ),
    "a shard of another release that the policy lists as well": (
        {"shard_provider": provider(LISTED)},
        Refusal.MEASUREMENT,
        "start both from one release",
    ),
    "a shard whose evidence is of a kind that the policy does not allow": (
        {"shard_provider": Posing(evidence_kind="sgx")},
        Refusal.KIND,
        "'sgx'; allowed: simulation",
    ),
    "a simulated shard at a lead in a real TEE": (
        {"lead_provider": Posing(kind="sgx")},
        Refusal.KIND,
        "with 'sgx' evidence has no peer with 'simulation'",
    ),
    "a simulated shard at a lead that was not asked for simulation": (
        {"circumstances": circumstances(flag=False)},
        Refusal.SIMULATION_FLAG,
        "",
    ),
    "a shard on a machine that the policy does not know": (
        {"shard_provider": provider(platform=OTHER_MACHINE)},
        Refusal.ROOT,
        "",
    ),
    "a shard on a machine whose microcode is below the policy": (
        {"circumstances": circumstances(replace(PLATFORM, status="OutOfDate"))},
        Refusal.TCB,
        "",
    ),
    "a shard that its host can debug": (
        {"shard_provider": Posing(quote={"debug": True})},
        Refusal.DEBUG,
        "",
    ),
    "a shard with collateral of another time": (
        {"circumstances": circumstances(now=NOW + 20 * 366 * 24 * 3600)},
        Refusal.VALIDITY,
        "",
    ),
    "a shard with a number that there is not": (
        {"shard": SHARDS},
        Refusal.BINDING,
        "there is no shard 3: this lead has 3, from 0 on",
    ),
}


@pytest.mark.parametrize("what", SHARDS_REFUSED)
def test_a_lead_refuses(what):
    changes, reason, said = SHARDS_REFUSED[what]
    meeting = Meeting(**changes)
    with pytest.raises(AttestationRefused) as refused:
        meeting.admit(meeting.hello())
    assert refused.value.reason == reason, str(refused.value)
    assert said in str(refused.value)


# A shard may say anything about the welcome that it got, so the lead looks for itself.
CHARTERS_REFUSED = {
    "an older revision": (replace(FEDERATION, revision=1), "copy federation.toml"),
    "a newer revision": (replace(FEDERATION, revision=3), "let the lead adopt"),
    "other terms of the same revision": (ANOTHER_TERMS, "different charters, both of revision 2"),
    "another federation": (replace(FEDERATION, id=b"j" * 32), "different charters"),
    "a weaker policy for shards": (
        replace(FEDERATION, shard_policy=SHARD_POLICY + "# weaker"),
        "different charters",
    ),
}


@pytest.mark.parametrize("what", CHARTERS_REFUSED)
def test_a_lead_refuses_a_shard_that_works_under(what):
    federation, said = CHARTERS_REFUSED[what]
    meeting = Meeting(shard_federation=federation)
    told = replace(meeting.welcome, federation=federation.id, revision=federation.revision)
    lying = meeting.joining.hello(told)
    with pytest.raises(AttestationRefused, match=said) as refused:
        meeting.admit(lying)
    assert refused.value.reason == Refusal.BINDING


def test_a_shard_with_an_older_charter_says_what_to_do_before_it_makes_evidence():
    meeting = Meeting(shard_federation=replace(FEDERATION, revision=1))
    with pytest.raises(AttestationRefused, match="the shard has revision 1 and the lead 2: the sh"):
        meeting.hello()
    meeting = Meeting(shard_federation=replace(FEDERATION, revision=5))
    with pytest.raises(AttestationRefused, match="the lead's is older; let the lead adopt"):
        meeting.hello()


def test_a_shard_refuses_a_lead_of_another_federation_before_it_makes_evidence(meeting):
    with pytest.raises(AttestationRefused, match=f"{b'j'.hex() * 32}, and this shard has"):
        meeting.joining.hello(replace(meeting.welcome, federation=b"j" * 32))
    talk(*meeting.whole()[:2])


def test_a_host_that_replays_a_hello_of_an_earlier_connection_is_refused():
    earlier = Meeting()
    hello = earlier.hello()
    earlier.admit(hello)
    with pytest.raises(AttestationRefused) as refused:
        Meeting().admit(hello)
    assert refused.value.reason == Refusal.BINDING


def test_a_host_that_gives_a_shard_another_nonce_is_refused(meeting):
    meeting.welcome = replace(meeting.welcome, nonce=b"n" * 32)
    hello = meeting.hello()
    with pytest.raises(AttestationRefused) as refused:
        meeting.admit(hello)
    assert refused.value.reason == Refusal.BINDING


# A host in the middle has a genuine shard make evidence, and wants the secret for itself.
MIDDLE: dict[str, dict[str, Any]] = {
    "its own hybrid key": {"ephemeral": HybridKey().public},
    "its own nonce": {"nonce": b"n" * 32},
    "another shard's number": {"shard": 2},
}


@pytest.mark.parametrize("what", MIDDLE)
def test_a_host_in_the_middle_cannot_put_into_a_hello(what, meeting):
    genuine = meeting.hello()
    altered = replace(genuine, **MIDDLE[what])
    with pytest.raises(OpenError, match="ShardHello"):
        meeting.admit(altered)
    stolen = replace(altered, key=HOST.public)
    for resigned in (HOST.sign(stolen), meeting.joining.identity.sign(altered)):
        with pytest.raises(AttestationRefused) as refused:
            meeting.admit(resigned)
        assert refused.value.reason == Refusal.BINDING
    admitted, at_lead = meeting.admit(genuine)
    talk(at_lead, meeting.finish(admitted)[0])


def test_a_host_that_signs_a_shards_evidence_with_its_own_key_is_refused(meeting):
    stolen = HOST.sign(replace(meeting.hello(), key=HOST.public))
    with pytest.raises(AttestationRefused) as refused:
        meeting.admit(stolen)
    assert refused.value.reason == Refusal.BINDING


def test_a_hello_that_the_shards_key_did_not_sign_is_refused(meeting):
    """Else the host could have the lead depute a key that this shard did not ask for."""
    hello = meeting.hello()
    for forged in (replace(hello, signature=UNSIGNED), HOST.sign(hello)):
        with pytest.raises(OpenError):
            meeting.admit(forged)


def test_evidence_that_is_for_a_client_is_none_for_a_lead(meeting):
    """What an enclave says to a client about a nonce of the client's is about something else."""
    hello = meeting.hello()
    for_client = provider().evidence(b"r" * 64)
    swapped = meeting.joining.identity.sign(replace(hello, evidence=for_client))
    with pytest.raises(AttestationRefused) as refused:
        meeting.admit(swapped)
    assert refused.value.reason == Refusal.BINDING


# What a shard refuses. Each is a meeting with somebody else in the place of the lead.

LEADS_REFUSED = {
    "a lead with a measurement that the policy does not list": (
        {"lead_provider": provider(EVIL)},
        Refusal.MEASUREMENT,
    ),
    "a lead of another release that the policy lists as well": (
        {"lead_provider": provider(LISTED)},
        Refusal.MEASUREMENT,
    ),
    "a lead whose evidence is of a kind that the policy does not allow": (
        {"lead_provider": Posing(evidence_kind="sgx")},
        Refusal.KIND,
    ),
    "a simulated lead of a shard in a real TEE": (
        {"shard_provider": Posing(kind="sgx")},
        Refusal.KIND,
    ),
    "a lead on a machine that the policy does not know": (
        {"lead_provider": provider(platform=OTHER_MACHINE)},
        Refusal.ROOT,
    ),
    "a lead that its host can debug": (
        {"lead_provider": Posing(quote={"debug": True})},
        Refusal.DEBUG,
    ),
    "a lead with another receipt key than the shard's ledger has": (
        {"lead": HOST},
        Refusal.BINDING,
    ),
}


def careless(meeting):
    """Has the lead admit whatever comes: its own checks are not what is tested."""
    meeting.admission._verify = lambda *_: None
    return meeting.admit(meeting.hello())[0]


@pytest.mark.parametrize("what", LEADS_REFUSED)
def test_a_shard_refuses(what):
    changes, reason = LEADS_REFUSED[what]
    meeting = Meeting(**changes)
    admitted = careless(meeting)
    with pytest.raises(AttestationRefused) as refused:
        meeting.finish(admitted)
    assert refused.value.reason == reason, str(refused.value)


def test_a_lead_whose_policy_is_met_but_whose_machine_has_become_old_is_refused(meeting):
    admitted, _ = meeting.admit(meeting.hello())
    old = circumstances(replace(PLATFORM, status="OutOfDate"))
    with pytest.raises(AttestationRefused) as refused:
        meeting.joining.finish(admitted, old)
    assert refused.value.reason == Refusal.TCB
    meeting.finish(admitted)


def test_a_host_that_takes_the_leads_evidence_for_a_receipt_key_of_its_own_is_refused():
    """The shard knows no receipt key yet, and would take one that was proved."""
    meeting = Meeting(expected=None)
    admitted, at_lead = meeting.admit(meeting.hello())
    deputy = HOST.sign(admitted.deputy)
    false = HOST.sign(replace(admitted, receipt_key=HOST.public, deputy=deputy))
    with pytest.raises(AttestationRefused) as refused:
        meeting.finish(false)
    assert refused.value.reason == Refusal.BINDING
    talk(at_lead, meeting.finish(admitted)[0])


def test_a_host_that_replays_an_answer_of_an_earlier_connection_is_refused(meeting):
    earlier = Meeting()
    old, _ = earlier.admit(earlier.hello())
    admitted, at_lead = meeting.admit(meeting.hello())
    with pytest.raises(AttestationRefused) as refused:
        meeting.finish(old)
    assert refused.value.reason == Refusal.BINDING
    talk(at_lead, meeting.finish(admitted)[0])


def test_a_host_that_gives_one_welcome_to_two_shards_cannot_swap_the_answers():
    """The lead has admitted one of them; the other would take its keys for its own."""
    meeting = Meeting()
    twin = Meeting()
    twin.welcome = meeting.welcome
    twin.hello()
    admitted, at_lead = meeting.admit(meeting.hello())
    with pytest.raises(AttestationRefused) as refused:
        twin.finish(admitted)
    assert refused.value.reason == Refusal.BINDING
    talk(at_lead, meeting.finish(admitted)[0])


def test_a_host_that_alters_an_answer_is_refused(meeting):
    admitted, at_lead = meeting.admit(meeting.hello())
    other = Meeting()
    theirs, _ = other.admit(other.hello())
    for altered in (
        replace(admitted, sealed_secret=theirs.sealed_secret),
        replace(admitted, deputy=theirs.deputy),
        replace(admitted, evidence=theirs.evidence),
        replace(admitted, signature=UNSIGNED),
    ):
        with pytest.raises(OpenError, match="ShardAdmitted"):
            meeting.finish(altered)
    talk(at_lead, meeting.finish(admitted)[0])


# Even a lead of the same code that is in error, or was made so, cannot have these believed.
DEPUTIES = {
    "that a stranger signed": HOST.sign,
    "that nobody signed": lambda deputy: replace(deputy, signature=UNSIGNED),
    "for another federation": lambda deputy: LEAD.sign(replace(deputy, federation=b"j" * 32)),
    "for another shard": lambda deputy: LEAD.sign(replace(deputy, shard=2)),
    "for another key": lambda deputy: LEAD.sign(replace(deputy, key=HOST.public)),
}


def proved(meeting, hello, admitted):
    """The same answer with evidence about what is now in it."""
    data = peering._admitted_data(meeting.welcome, hello, admitted)
    return meeting.lead.sign(replace(admitted, evidence=provider().evidence(data)))


@pytest.mark.parametrize("what", DEPUTIES)
def test_a_shard_refuses_a_deputy(what, meeting):
    hello = meeting.hello()
    admitted, _ = meeting.admit(hello)
    false = proved(meeting, hello, replace(admitted, deputy=DEPUTIES[what](admitted.deputy)))
    with pytest.raises(OpenError, match="Deputy"):
        meeting.finish(false)
    meeting.finish(admitted)


def test_a_secret_that_was_sealed_to_another_connection_does_not_open(meeting):
    hello = meeting.hello()
    admitted, _ = meeting.admit(hello)
    other = Meeting()
    theirs, _ = other.admit(other.hello())
    false = proved(meeting, hello, replace(admitted, sealed_secret=theirs.sealed_secret))
    with pytest.raises(OpenError, match="sealed key"):
        meeting.finish(false)
    meeting.finish(admitted)


def test_a_worker_refuses_a_deputy_of_another_lead_or_federation(meeting):
    *_, deputy = meeting.whole()
    require_deputy(deputy, receipt_key=LEAD.public, federation=FEDERATION.id)
    with pytest.raises(OpenError):
        require_deputy(deputy, receipt_key=HOST.public, federation=FEDERATION.id)
    with pytest.raises(OpenError):
        require_deputy(deputy, receipt_key=LEAD.public, federation=b"j" * 32)


# Each side is used once, and in order.


def test_an_admission_is_for_one_shard(meeting):
    hello = meeting.hello()
    meeting.admit(hello)
    with pytest.raises(LocalProtocolError):
        meeting.admit(hello)


def test_a_shard_joins_once_and_says_hello_first(meeting):
    other = Meeting()
    admitted, _ = other.admit(other.hello())
    with pytest.raises(LocalProtocolError):
        meeting.finish(admitted)
    other.finish(admitted)
    with pytest.raises(LocalProtocolError):
        other.finish(admitted)
    with pytest.raises(LocalProtocolError):
        other.hello()


def test_an_enclave_whose_platform_attests_to_other_code_stops_before_it_says_so():
    with pytest.raises(LocalProtocolError, match="other code"):
        Meeting(shard_provider=provider(LISTED), shard_code=code_id(provider())).hello()
    meeting = Meeting(lead_provider=provider(LISTED), lead_code=code_id(provider()))
    hello = meeting.hello()
    with pytest.raises(LocalProtocolError, match="other code"):
        meeting.admit(hello)


def test_every_connection_has_keys_nonces_and_secrets_of_its_own():
    met = [Meeting() for _ in range(3)]
    hellos = [each.hello() for each in met]
    answers = [each.admit(hello) for each, hello in zip(met, hellos, strict=True)]
    for drawn in (
        {each.welcome.nonce for each in met},
        {hello.nonce for hello in hellos},
        {hello.key for hello in hellos},
        {hello.ephemeral for hello in hellos},
        {admitted.sealed_secret for admitted, _ in answers},
        {channel.seal(b"the same") for _, channel in answers},
    ):
        assert len(drawn) == 3


def test_nothing_that_holds_a_key_shows_it(meeting):
    at_lead, at_shard, _ = meeting.whole()
    shown = repr([at_lead, at_shard, meeting.admission, meeting.joining])
    assert shown.count("<secret>") == 3
    assert "PeerChannel(sent=0, received=0, <secret>)" in shown


# The channel. The host carries every message, and may do with it what it likes.


@pytest.fixture
def ends(meeting):
    return meeting.whole()[:2]


def dead(channel):
    for _ in range(2):
        with pytest.raises(OpenError):
            channel.seal(b"more")
        with pytest.raises(OpenError):
            channel.open(bytes(16))


HOSTS = {
    "repeats a message": lambda sealed, _: [sealed[0], sealed[0]],
    "swaps two messages": lambda sealed, _: [sealed[1], sealed[0]],
    "leaves one out": lambda sealed, _: [sealed[0], sealed[2]],
    "flips a bit": lambda sealed, _: [bytes([sealed[0][0] ^ 1]) + sealed[0][1:]],
    "flips a bit of the tag": lambda sealed, _: [sealed[0][:-1] + bytes([sealed[0][-1] ^ 1])],
    "cuts off the end": lambda sealed, _: [sealed[0][:-1]],
    "adds a byte": lambda sealed, _: [sealed[0] + b"\0"],
    "sends nothing": lambda sealed, _: [b""],
    "joins two messages": lambda sealed, _: [sealed[0] + sealed[1]],
    "sends a shard its own message": lambda _, own: [own],
}


@pytest.mark.parametrize("what", HOSTS)
def test_a_channel_is_dead_for_ever_after_a_host(what, ends):
    at_lead, at_shard = ends
    sealed = [at_lead.seal(text) for text in (b"one", b"two", b"three")]
    carried = HOSTS[what](sealed, at_shard.seal(b"own"))
    if carried[0] == sealed[0]:
        assert at_shard.open(carried.pop(0)) == b"one"
    for each in [*carried, *sealed]:
        with pytest.raises(OpenError):
            at_shard.open(each)
    dead(at_shard)


def test_messages_of_another_connection_of_the_same_two_do_not_open(ends):
    again = Meeting().whole()[0]
    with pytest.raises(OpenError):
        ends[1].open(again.seal(b"from a later attempt"))
    dead(ends[1])


@given(noise=st.binary(max_size=64))
def test_a_channel_opens_no_noise(noise):
    channel = PeerChannel(b"s" * 32, b"r" * 32)
    with pytest.raises(OpenError):
        channel.open(noise)
    dead(channel)


def test_a_direction_may_be_used_from_many_threads(ends):
    """No nonce is used twice: every message has a place of its own in the order."""
    at_lead, at_shard = ends
    sealed: list[bytes] = []

    def work():
        sealed.extend(at_lead.seal(b"text") for _ in range(200))

    threads = [Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(sealed)) == 1600
    left = set(sealed)
    for number in range(1600):
        expected = at_lead._sending.encrypt(number.to_bytes(12, "big"), b"text", None)
        left.remove(expected)
        assert at_shard.open(expected) == b"text"


# Decoders: any bytes are a message, or malformed.

KINDS = (ShardWelcome, ShardHello, ShardAdmitted, Deputy)


@given(kind=st.sampled_from(KINDS), data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(kind, data):
    with pytest.raises(MalformedMessage):
        decode(kind, data)


def genuine():
    meeting = Meeting()
    hello = meeting.hello()
    admitted, _ = meeting.admit(hello)
    return [encode(each) for each in (meeting.welcome, hello, admitted, admitted.deputy)]


GENUINE = genuine()


@given(which=st.integers(0, 3), at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_one_flipped_bit_is_another_message_or_malformed(which, at, bit):
    data = bytearray(GENUINE[which])
    data[at % len(data)] ^= 1 << bit
    try:
        message = decode(KINDS[which], bytes(data))
    except MalformedMessage:
        return
    assert encode(message) == bytes(data) != GENUINE[which]
