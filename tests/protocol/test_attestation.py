"""A client and an enclave that proves itself by simulated quotes: what the client refuses, and why.

The quotes are synthetic; the code that checks them is the one that checks real ones.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from ostraka.attestation import policy_file
from ostraka.attestation.claims import Binding
from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.attestation.simulation import SimulationPolicy, UnsafeSimulatedPlatform
from ostraka.attestation.verify import Circumstances, verify, verify_charter
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.core import rules
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import AttestationRefused, OstrakaError, ReceiptRefused, Refusal
from ostraka.messages import Charter, Evidence, Introduction, RoundOffer
from ostraka.protocol.client import Client
from ostraka.protocol.enclave import Enclave

NOW = 1_800_000_000
DAY = 24 * 3600
AUTHORITY, STRANGER = Identity(b"a" * 32), Identity(b"s" * 32)
CLIENTS = [Identity(bytes([i]) * 32) for i in range(1, 6)]
WORKERS = [Identity(bytes([i]) * 32) for i in range(101, 104)]
MRENCLAVE = hashlib.sha256(b"the code that the client has read").digest()
MRSIGNER = hashlib.sha256(b"whoever signs it").digest()
NONCE = b"n" * 32


def members(kind: str, identities: list[Identity]) -> tuple[Member, ...]:
    return tuple(Member(f"{kind}-{i}", each.public) for i, each in enumerate(identities))


ID = b"i" * 32
FEDERATION = Federation(
    Terms(Manifest.flat(20), f=1, tile=16),
    members("client", CLIENTS),
    members("worker", WORKERS[:2]),
    AUTHORITY.public,
    ID,
)
POLICY = Policy(
    evidence=("simulation",),
    unsafe_simulation=True,
    federation=FederationPolicy(AUTHORITY.public, ID, tuple(each.public for each in WORKERS[:2])),
)
MACHINE = UnsafeSimulatedPlatform(b"m" * 32, issued=NOW - 10 * DAY, lifetime=30 * DAY)


def signed(federation: Federation, by: Identity = AUTHORITY) -> Charter:
    return by.sign(Charter(federation, UNSIGNED))


@dataclass
class Meeting:
    """A client that challenges an enclave. Every field can be made to lie."""

    platform: UnsafeSimulatedPlatform = MACHINE
    policy: Policy = POLICY
    federation: Federation = FEDERATION
    charter: Charter | None = None
    code: dict[str, Any] = field(default_factory=dict)  # what the quote says of the enclave
    listed: dict[str, Any] = field(default_factory=dict)  # what the policy says of it
    bound: dict[str, bytes] = field(default_factory=dict)  # what the report data is really about
    evidence: dict[str, Any] = field(default_factory=dict)
    introduction: dict[str, Any] = field(default_factory=dict)
    collateral: bytes | None = b"the platform's own"
    now: int = NOW
    flag: bool = True

    @cached_property
    def opened(self) -> Any:
        enclave = Enclave(self.federation, Identity(b"e" * 32), evidence="simulation")
        return enclave.open_round()

    def quote(self) -> bytes:
        bound = replace(self.opened.binding(NONCE), **self.bound)
        code = {"mrenclave": MRENCLAVE, "mrsigner": MRSIGNER} | self.code
        return self.platform.quote(bound.report_data(), **code)

    def introduce(self) -> Introduction:
        evidence = Evidence("simulation", self.quote(), (self.platform.root_der,))
        whole = Introduction(
            self.opened.offer,
            self.opened.binding(NONCE).receipt_key,
            replace(evidence, **self.evidence),
        )
        return decode(Introduction, encode(replace(whole, **self.introduction)))

    def accepted(self) -> Policy:
        listed = {"root": (MACHINE.root_digest,), "mrenclave": (MRENCLAVE,)} | self.listed
        return replace(self.policy, tees=(SimulationPolicy(**listed),))

    def join(self) -> Any:
        """The client's whole way to a round. Nothing is sealed before its last line."""
        charter = self.charter or signed(self.federation)
        federation = verify_charter(charter, self.accepted(), self.now)
        introduction = self.introduce()
        said = self.collateral
        if said == b"the platform's own":
            said = self.platform.collateral()
        attested = verify(
            introduction,
            nonce=NONCE,
            federation=federation,
            policy=self.accepted(),
            circumstances=Circumstances(
                self.now, {} if said is None else {"collateral": said}, self.flag
            ),
        )
        client = Client("client-0", CLIENTS[0], federation)
        return client.join(introduction.offer, attested)


def platform(**changes: Any) -> UnsafeSimulatedPlatform:
    return replace(MACHINE, **changes)


def with_workers(*identities: Identity) -> Federation:
    return replace(FEDERATION, workers=members("worker", list(identities)))


def a_flipped_bit(at: int) -> bytes:
    quote = bytearray(Meeting().quote())
    quote[at] ^= 1
    return bytes(quote)


def other_offer() -> RoundOffer:
    enclave = Enclave(FEDERATION, Identity(b"e" * 32), evidence="simulation")
    return enclave.open_round().offer


def test_a_client_joins_an_enclave_that_has_proved_itself():
    joined = Meeting().join()
    assert joined.attested.kind == "simulation"
    assert joined.client.receipt_key == Identity(b"e" * 32).public
    assert joined.seal(np.zeros(20, np.float32)).sealed.header.client == "client-0"


WITNESSES = [Identity(bytes([i]) * 32) for i in range(201, 204)]


def witnessed(*identities: Identity, confirm: str = "both") -> Federation:
    terms = replace(FEDERATION.terms, confirm=confirm)
    return replace(FEDERATION, terms=terms, witnesses=members("witness", list(identities)))


def confirmed_by(*identities: Identity, **changes: Any) -> Policy:
    pinned = tuple(each.public for each in identities)
    return replace(POLICY, federation=replace(POLICY.federation, witnesses=pinned, **changes))


def ruled(rule: str, **changes: Any) -> Federation:
    """Another revision, with another rule: "trimmed-mean(beta=0.0)"."""
    read = rules.parse(rule)
    named: dict[str, Any] = {"rule": read.name, "pre": read.pre, "options": read.options}
    return replace(FEDERATION, revision=2, terms=replace(FEDERATION.terms, **(named | changes)))


def pinning(*accepted: str, **changes: Any) -> Policy:
    return replace(POLICY, federation=replace(POLICY.federation, rules=accepted, **changes))


SHARDS = 'version = 1\nevidence = ["tdx"]\n'


def for_shards(text: str) -> Policy:
    pinned = (hashlib.sha256(text.encode()).digest(),)
    return replace(POLICY, federation=replace(POLICY.federation, shard_policies=pinned))


PINNED = str(FEDERATION.terms.composition)
OTHER_KEY = HybridKey().public
OTHER_TERMS = replace(FEDERATION, terms=replace(FEDERATION.terms, f=0))

REFUSALS: dict[str, tuple[Meeting, Refusal]] = {
    # Whose federation it is.
    "a roster that nobody signed": (
        Meeting(charter=Charter(FEDERATION, UNSIGNED)),
        Refusal.AUTHORITY,
    ),
    "a roster that a stranger signed": (
        Meeting(charter=signed(FEDERATION, STRANGER)),
        Refusal.AUTHORITY,
    ),
    "a roster under a stranger's own authority": (
        Meeting(charter=signed(replace(FEDERATION, authority=STRANGER.public), STRANGER)),
        Refusal.AUTHORITY,
    ),
    "a roster with one client more than was signed": (
        Meeting(
            charter=replace(
                signed(FEDERATION),
                federation=replace(
                    FEDERATION, clients=(*FEDERATION.clients, Member("sybil", STRANGER.public))
                ),
            )
        ),
        Refusal.AUTHORITY,
    ),
    "a policy that names no authority": (
        Meeting(policy=replace(POLICY, federation=FederationPolicy())),
        Refusal.AUTHORITY,
    ),
    "another federation of the same authority": (
        Meeting(federation=replace(FEDERATION, id=b"j" * 32)),
        Refusal.FEDERATION,
    ),
    "a policy that names no federation": (
        Meeting(policy=replace(POLICY, federation=FederationPolicy(AUTHORITY.public))),
        Refusal.FEDERATION,
    ),
    "a charter that has expired": (
        Meeting(federation=replace(FEDERATION, expires=NOW - 301)),
        Refusal.EXPIRED,
    ),
    "a roster with another worker key": (
        Meeting(federation=with_workers(WORKERS[0], WORKERS[2])),
        Refusal.WORKERS,
    ),
    "a roster with one worker more": (
        Meeting(federation=with_workers(*WORKERS)),
        Refusal.WORKERS,
    ),
    "a policy that pins no worker": (
        Meeting(policy=replace(POLICY, federation=FederationPolicy(AUTHORITY.public, ID))),
        Refusal.WORKERS,
    ),
    "a successor that the policy does not pin": (
        Meeting(federation=replace(FEDERATION, successors=(b"s" * 32,))),
        Refusal.SUCCESSOR,
    ),
    "shards, and a policy that pins nothing for them": (
        Meeting(federation=replace(FEDERATION, shard_policy=SHARDS)),
        Refusal.SHARDS,
    ),
    "shards that are held to a weaker policy than the one that is pinned": (
        Meeting(
            federation=replace(FEDERATION, shard_policy=SHARDS + "\n# and any platform"),
            policy=for_shards(SHARDS),
        ),
        Refusal.SHARDS,
    ),
    "gaussian masking that the policy does not ask for": (
        Meeting(
            federation=replace(
                FEDERATION, terms=replace(FEDERATION.terms, masking="gaussian", leakage_bits=1e3)
            )
        ),
        Refusal.MASKING,
    ),
    # By which rule.
    "a revision that turns to the plain mean": (
        Meeting(federation=ruled("mean"), policy=pinning(PINNED)),
        Refusal.RULE,
    ),
    "the pinned rule without what came before it": (
        Meeting(federation=ruled("geometric-median"), policy=pinning(PINNED)),
        Refusal.RULE,
    ),
    "the pinned rule with an option that makes it the plain mean": (
        Meeting(federation=ruled(f"{PINNED}(smoothing=1e38)"), policy=pinning(PINNED)),
        Refusal.RULE,
    ),
    "a policy that lists no rule": (Meeting(policy=pinning()), Refusal.RULE),
    "terms that disclose values of single clients": (
        Meeting(federation=ruled(PINNED, disclose_values=True)),
        Refusal.DISCLOSURE,
    ),
    "disclosed values under a rule that the policy lists": (
        Meeting(federation=ruled(PINNED, disclose_values=True), policy=pinning(PINNED)),
        Refusal.DISCLOSURE,
    ),
    "terms that publish means of what clients report": (
        Meeting(federation=ruled(PINNED, report_metrics=("loss",))),
        Refusal.METRICS,
    ),
    "terms that publish more of it than the policy allows": (
        Meeting(
            federation=ruled(PINNED, report_metrics=("loss", "examples")),
            policy=pinning(PINNED, report_metrics=("loss",)),
        ),
        Refusal.METRICS,
    ),
    # Who confirms.
    "outcomes that nobody confirms": (
        Meeting(federation=replace(FEDERATION, terms=replace(FEDERATION.terms, confirm="none"))),
        Refusal.CONFIRM,
    ),
    "outcomes that others confirm than the policy allows": (
        Meeting(
            federation=witnessed(WITNESSES[0], confirm="witnesses"),
            policy=confirmed_by(WITNESSES[0], confirms=("clients", "both")),
        ),
        Refusal.CONFIRM,
    ),
    "a policy that allows nobody to confirm": (
        Meeting(policy=confirmed_by(confirms=())),
        Refusal.CONFIRM,
    ),
    "a witness that the policy does not pin": (
        Meeting(federation=witnessed(WITNESSES[0])),
        Refusal.WITNESSES,
    ),
    "one witness more than the policy pins": (
        Meeting(federation=witnessed(*WITNESSES), policy=confirmed_by(*WITNESSES[:2])),
        Refusal.WITNESSES,
    ),
    "a federation without the witnesses that the policy pins": (
        Meeting(policy=confirmed_by(*WITNESSES)),
        Refusal.WITNESSES,
    ),
    # What it is proved by.
    "an empty policy": (Meeting(policy=replace(POLICY, evidence=())), Refusal.KIND),
    "a policy for hardware only": (
        Meeting(policy=replace(POLICY, evidence=("sgx",))),
        Refusal.KIND,
    ),
    "simulation with the flag but not the policy": (
        Meeting(policy=replace(POLICY, unsafe_simulation=False)),
        Refusal.SIMULATION_POLICY,
    ),
    "simulation with the policy but not the flag": (Meeting(flag=False), Refusal.SIMULATION_FLAG),
    "simulation that calls itself sgx": (
        Meeting(policy=replace(POLICY, evidence=("sgx",)), evidence={"kind": "sgx"}),
        Refusal.ROOT,
    ),
    "simulation that calls itself tdx": (
        Meeting(policy=replace(POLICY, evidence=("tdx",)), evidence={"kind": "tdx"}),
        Refusal.MALFORMED,
    ),
    "simulation that calls itself snp": (
        Meeting(policy=replace(POLICY, evidence=("snp",)), evidence={"kind": "snp"}),
        Refusal.MALFORMED,
    ),
    "simulation that calls itself nitro": (
        Meeting(policy=replace(POLICY, evidence=("nitro",)), evidence={"kind": "nitro"}),
        Refusal.MALFORMED,
    ),
    "evidence of a kind that nobody knows": (
        Meeting(policy=replace(POLICY, evidence=("magic",)), evidence={"kind": "magic"}),
        Refusal.KIND,
    ),
    "no evidence at all": (Meeting(evidence={"document": b""}), Refusal.MALFORMED),
    "half of a quote": (Meeting(evidence={"document": Meeting().quote()[:700]}), Refusal.MALFORMED),
    # Who vouches for the platform.
    "a quote without its root": (Meeting(evidence={"endorsements": ()}), Refusal.ROOT),
    "a quote of another simulated machine": (
        Meeting(platform=platform(seed=b"o" * 32)),
        Refusal.ROOT,
    ),
    "another machine's quote under the right root": (
        Meeting(
            platform=platform(seed=b"o" * 32),
            evidence={"endorsements": (MACHINE.root_der,)},
            collateral=MACHINE.collateral(),
        ),
        Refusal.ROOT,
    ),
    "no collateral": (Meeting(collateral=None), Refusal.COLLATERAL),
    "collateral that is no collateral": (Meeting(collateral=b"{}"), Refusal.COLLATERAL),
    "collateral of another machine": (
        Meeting(collateral=platform(seed=b"o" * 32).collateral()),
        Refusal.ROOT,
    ),
    "a revoked platform certificate": (
        Meeting(platform=platform(revoked=("pck",))),
        Refusal.REVOKED,
    ),
    "a revoked platform authority": (
        Meeting(platform=platform(revoked=("pck-ca",))),
        Refusal.REVOKED,
    ),
    "a platform whose level is revoked": (
        Meeting(platform=platform(status="Revoked")),
        Refusal.REVOKED,
    ),
    "a platform that is out of date": (Meeting(platform=platform(status="OutOfDate")), Refusal.TCB),
    "a platform that needs software hardening": (
        Meeting(platform=platform(status="SWHardeningNeeded")),
        Refusal.TCB,
    ),
    "a quoting enclave that is out of date": (
        Meeting(platform=platform(qe_status="OutOfDate")),
        Refusal.TCB,
    ),
    "a platform with hyperthreading": (
        Meeting(platform=platform(properties=("smt",))),
        Refusal.PLATFORM,
    ),
    "certificates that have expired": (Meeting(now=NOW + 40 * DAY), Refusal.VALIDITY),
    "certificates that are not valid yet": (Meeting(now=NOW - 20 * DAY), Refusal.VALIDITY),
    "collateral that has expired": (
        Meeting(platform=platform(collateral_lifetime=DAY)),
        Refusal.VALIDITY,
    ),
    # What code it is.
    "a debug enclave": (Meeting(code={"debug": True}), Refusal.DEBUG),
    "code with one byte changed": (
        Meeting(code={"mrenclave": hashlib.sha256(b"The code that the client has read").digest()}),
        Refusal.MEASUREMENT,
    ),
    "a policy that lists no code": (Meeting(listed={"mrenclave": ()}), Refusal.MEASUREMENT),
    "code that somebody else signed": (
        Meeting(listed={"mrsigner": (MRENCLAVE,)}),
        Refusal.MEASUREMENT,
    ),
    "the right signer's other product": (
        Meeting(
            code={"isv_prod_id": 2},
            listed={"mrenclave": (), "mrsigner": (MRSIGNER,), "isv_prod_id": 1},
        ),
        Refusal.MEASUREMENT,
    ),
    "a version with known holes": (
        Meeting(code={"isv_svn": 3}, listed={"min_isv_svn": 4}),
        Refusal.VERSION,
    ),
    # What the evidence is about.
    "a quote with another client's nonce": (Meeting(bound={"nonce": b"o" * 32}), Refusal.BINDING),
    "a quote with my nonce but another key": (
        Meeting(bound={"round_key": OTHER_KEY}),
        Refusal.BINDING,
    ),
    "a quote with my nonce but another receipt key": (
        Meeting(bound={"receipt_key": STRANGER.public}),
        Refusal.BINDING,
    ),
    "a quote for another federation": (
        Meeting(bound={"federation": OTHER_TERMS.digest()}),
        Refusal.BINDING,
    ),
    "a quote for a roster with another worker": (
        Meeting(bound={"federation": with_workers(WORKERS[0], WORKERS[2]).digest()}),
        Refusal.BINDING,
    ),
    "the offer of another round beside the evidence": (
        Meeting(introduction={"offer": other_offer()}),
        Refusal.BINDING,
    ),
    "a receipt key that was exchanged on the way": (
        Meeting(introduction={"receipt_key": STRANGER.public}),
        Refusal.BINDING,
    ),
    # What was changed on the way.
    "a bit of the measurement flipped": (
        Meeting(evidence={"document": a_flipped_bit(48 + 64)}),
        Refusal.SIGNATURE,
    ),
    "a bit of the report data flipped": (
        Meeting(evidence={"document": a_flipped_bit(48 + 320)}),
        Refusal.SIGNATURE,
    ),
    "a bit of the quote's signature flipped": (
        Meeting(evidence={"document": a_flipped_bit(48 + 384 + 4)}),
        Refusal.SIGNATURE,
    ),
}


def test_the_table_is_long_enough():
    assert len(REFUSALS) >= 40


@pytest.mark.parametrize("what", REFUSALS)
def test_a_client_refuses(what, monkeypatch):
    meeting, reason = REFUSALS[what]
    sealed: list[object] = []
    monkeypatch.setattr("ostraka.crypto.updates.seal", lambda *_, **__: sealed.append(1))
    with pytest.raises(AttestationRefused) as caught:
        meeting.join().seal(None)
    assert caught.value.reason == reason, str(caught.value)
    assert not sealed


def test_an_error_about_code_says_which_line_would_trust_it():
    with pytest.raises(AttestationRefused) as caught:
        Meeting(listed={"mrenclave": ()}).join()
    assert f'mrenclave = ["{MRENCLAVE.hex()}"]' in str(caught.value)


def test_a_refusal_says_which_line_would_trust_the_federation_or_its_witness():
    nameless = replace(POLICY, federation=replace(POLICY.federation, id=None))
    with pytest.raises(AttestationRefused, match=f'add: id = "{ID.hex()}"'):
        Meeting(policy=nameless).join()
    with pytest.raises(AttestationRefused) as caught:
        Meeting(federation=witnessed(WITNESSES[0])).join()
    assert f"'witness-0'; to trust it, add {WITNESSES[0].public.hex()} to" in str(caught.value)


@pytest.mark.parametrize(
    ("maskings", "said"), [(("exact", "none"), "exact, none"), ((), "none at")]
)
def test_a_refused_masking_comes_with_those_that_are_allowed(maskings, said):
    policy = replace(POLICY, federation=replace(POLICY.federation, maskings=maskings))
    leaky = replace(FEDERATION.terms, masking="gaussian", leakage_bits=1e3)
    with pytest.raises(AttestationRefused, match=f"gaussian; allowed: {said}"):
        Meeting(federation=replace(FEDERATION, terms=leaky), policy=policy).join()


@pytest.mark.parametrize(("kinds", "said"), [(("sgx", "tdx"), "sgx, tdx"), ((), "none at all")])
def test_refused_evidence_comes_with_what_is_allowed(kinds, said):
    with pytest.raises(AttestationRefused, match=f"'simulation'; allowed: {said}"):
        Meeting(policy=replace(POLICY, evidence=kinds)).join()


def test_an_expired_charter_is_still_a_piece_of_history():
    """It is refused for the round of today, and followed as a link of the chain."""
    charter = signed(replace(FEDERATION, expires=NOW - DAY))
    assert verify_charter(charter, POLICY) == charter.federation
    with pytest.raises(AttestationRefused):
        verify_charter(charter, POLICY, NOW)
    verify_charter(charter, POLICY, NOW - DAY)


ALLOWED = {
    "a platform that needs hardening, if that is allowed": Meeting(
        platform=platform(status="SWHardeningNeeded"), listed={"allow": ("SWHardeningNeeded",)}
    ),
    "hyperthreading, if that is allowed": Meeting(
        platform=platform(properties=("smt",)), listed={"allow": ("smt",)}
    ),
    "any code of one signer, from a version on": Meeting(
        code={"isv_prod_id": 1, "isv_svn": 4},
        listed={"mrenclave": (), "mrsigner": (MRSIGNER,), "isv_prod_id": 1, "min_isv_svn": 4},
    ),
    "a clock that is a little off": Meeting(now=NOW + 20 * DAY + 200),
    "a charter in its last moments": Meeting(federation=replace(FEDERATION, expires=NOW - 300)),
    "witnesses that are pinned": Meeting(
        federation=witnessed(*WITNESSES[:2]), policy=confirmed_by(*WITNESSES)
    ),
    "witnesses alone": Meeting(
        federation=witnessed(WITNESSES[1], confirm="witnesses"), policy=confirmed_by(*WITNESSES)
    ),
    "any rule, if the policy lists none": Meeting(federation=ruled("mean")),
    "one of the rules that are listed": Meeting(
        federation=ruled("multi-krum"), policy=pinning(PINNED, "multi-krum")
    ),
    "disclosed values, if that is asked for": Meeting(
        federation=ruled(PINNED, disclose_values=True),
        policy=replace(POLICY, federation=replace(POLICY.federation, disclose_values=True)),
    ),
    "means of what clients report, if that is asked for": Meeting(
        federation=ruled(PINNED, report_metrics=("loss",)),
        policy=pinning(PINNED, report_metrics=("loss", "accuracy")),
    ),
    "nobody to confirm, if that is asked for": Meeting(
        federation=replace(FEDERATION, terms=replace(FEDERATION.terms, confirm="none")),
        policy=confirmed_by(confirms=("none",)),
    ),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_a_client_accepts(what):
    assert ALLOWED[what].join().attested.kind == "simulation"


def test_refused_shards_come_with_the_line_that_accepts_them():
    federation = replace(FEDERATION, shard_policy=SHARDS)
    with pytest.raises(AttestationRefused, match="sha256sum") as refused:
        Meeting(federation=federation).join()
    line = str(refused.value).rpartition("[federation]: ")[2]
    read = policy_file.parse(f"version = 1\n[federation]\n{line}", "p.toml")
    pinned = replace(POLICY.federation, shard_policies=read.federation.shard_policies)
    Meeting(federation=federation, policy=replace(POLICY, federation=pinned)).join()


def test_a_refused_rule_comes_with_the_line_that_accepts_it():
    with pytest.raises(AttestationRefused) as refused:
        Meeting(federation=ruled("multi-krum(k=3)"), policy=pinning(PINNED)).join()
    line = str(refused.value).rpartition("write under [federation]: ")[2]
    text = f"version = 1\n[federation]\n{line}"
    assert policy_file.parse(text, "p").federation.rules == (PINNED, "multi-krum(k=3)")
    with pytest.raises(AttestationRefused) as refused:
        Meeting(federation=ruled(PINNED, disclose_values=True)).join()
    line = str(refused.value).rpartition("write under [federation]: ")[2]
    assert policy_file.parse(f"version = 1\n[federation]\n{line}", "p").federation.disclose_values
    with pytest.raises(AttestationRefused) as refused:
        Meeting(
            federation=ruled(PINNED, report_metrics=("loss", "accuracy")),
            policy=pinning(PINNED, report_metrics=("examples",)),
        ).join()
    line = str(refused.value).rpartition("write under [federation]: ")[2]
    read = policy_file.parse(f"version = 1\n[federation]\n{line}", "p").federation
    assert read.report_metrics == ("examples", "loss", "accuracy")


def test_a_client_that_follows_one_enclave_does_not_turn_to_another():
    """Both have proved themselves; only one has signed the receipts that the client holds."""
    first = Meeting()
    client = first.join().client
    other = Enclave(FEDERATION, Identity(b"f" * 32), evidence="simulation").open_round()
    binding = other.binding(NONCE)
    quote = MACHINE.quote(binding.report_data(), mrenclave=MRENCLAVE, mrsigner=MRSIGNER)
    introduction = Introduction(
        other.offer, binding.receipt_key, Evidence("simulation", quote, (MACHINE.root_der,))
    )
    attested = verify(
        introduction,
        nonce=NONCE,
        federation=FEDERATION,
        policy=first.accepted(),
        circumstances=Circumstances(NOW, {"collateral": MACHINE.collateral()}, True),
    )
    with pytest.raises(ReceiptRefused, match="another key"):
        client.join(other.offer, attested)


def test_report_data_binds_each_field_apart():
    """Each field is behind its length, so none can lend a byte to its neighbour."""
    fields = {
        "nonce": b"n" * 32,
        "round_key": b"k" * 8,
        "receipt_key": b"r" * 8,
        "federation": b"c" * 8,
    }
    base = Binding(**fields)
    assert len(base.report_data()) == 64
    others = [replace(base, **{name: value + b"!"}) for name, value in fields.items()]
    shifted = replace(base, round_key=b"k" * 7, receipt_key=b"k" + b"r" * 8)
    assert len({each.report_data() for each in (base, shifted, *others)}) == 6


def test_every_receipt_of_a_simulated_enclave_says_so(simulate):
    simulation = simulate()
    simulation.enclave = Enclave(
        simulation.federation,
        Identity(b"e" * 32),
        evidence="simulation",
        entropy=simulation.entropy,
    )
    round_ = simulation.open()
    for row in range(len(simulation.rows)):
        simulation.clients[row] = replace(simulation.clients[row], receipt_key=None)
        round_.send(round_.seal(row))
    receipt = round_.finish().receipt
    assert receipt.evidence == "simulation"
    assert any("simulated" in caution for caution in receipt.cautions)


def test_a_client_refuses_a_revision_older_than_the_one_it_agreed_to():
    newer = replace(FEDERATION, revision=3)
    client = Client("client-0", CLIENTS[0], newer)
    for old in (FEDERATION, replace(FEDERATION, revision=2), replace(OTHER_TERMS, revision=3)):
        with pytest.raises(ReceiptRefused, match="not newer than revision 3"):
            client.adopt(old)
    assert client.adopt(newer) is client
    assert client.adopt(replace(FEDERATION, revision=4)).federation.revision == 4


@pytest.mark.parametrize("what", REFUSALS)
def test_no_refusal_shows_a_secret(what):
    with pytest.raises(OstrakaError) as caught:
        REFUSALS[what][0].join()
    for secret in (MACHINE.seed, b"a" * 32, b"e" * 32):
        assert secret.hex() not in str(caught.value)


def test_a_refusal_says_what_was_got_and_what_was_expected():
    other = replace(FEDERATION, id=b"j" * 32)
    strange = replace(FEDERATION, authority=STRANGER.public)
    for charter, got, expected in (
        (signed(other), other.id, ID),
        (signed(strange, STRANGER), STRANGER.public, AUTHORITY.public),
    ):
        with pytest.raises(AttestationRefused) as refused:
            verify_charter(charter, POLICY)
        assert f"got {got.hex()}, and the policy expects {expected.hex()}" in str(refused.value)
