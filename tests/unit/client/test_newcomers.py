"""A newcomer has the policy alone, and verifies where the chain is by what it is shown of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.client.following import begin_with
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, digest
from ostraka.errors import AttestationRefused, OpenError, ReceiptRefused, Refusal
from ostraka.messages import (
    Abandon,
    Certified,
    Charter,
    Link,
    Proposal,
    Receipt,
    chain,
    genesis,
    milestones,
)
from ostraka.protocol.client import Client
from ostraka.protocol.confirm import Ballot, confirm, outcome_digest
from ostraka.transport import chain_link

D = 17
ID = b"i" * 32
AUTHORITY, ENCLAVE, MALLORY = Identity(b"a" * 32), Identity(b"e" * 32), Identity(b"m" * 32)
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace")
PEOPLE = {name: Identity(name.encode().ljust(32)) for name in NAMES}
POLICY = Policy(federation=FederationPolicy(authority=AUTHORITY.public, id=ID))
TERMS = Terms(Manifest.flat(3), f=0, masking="none", distances="inside")


def charter(names: Sequence[str], revision: int = 1, *, f: int = 0, revoked=()) -> Charter:
    federation = Federation(
        replace(TERMS, f=f),
        members(names),
        (),
        AUTHORITY.public,
        ID,
        revision=revision,
        revoked=members(revoked),
    )
    return AUTHORITY.sign(Charter(federation, UNSIGNED))


def members(names):
    return tuple(Member(name, PEOPLE[name].public) for name in names)


@dataclass
class Chain:
    """What an honest enclave and honest voters would make."""

    charters: list[Charter]
    ends: list[Certified | Abandon]

    @property
    def newest(self) -> Federation:
        return self.charters[-1].federation

    def electors(self) -> Federation:
        if not self.ends:
            return self.charters[0].federation
        last = self.ends[-1]
        if isinstance(last, Abandon):
            return last.electors
        named = last.receipt.federation
        return next(e.federation for e in self.charters if e.federation.digest() == named)

    @property
    def previous(self) -> bytes:
        if not self.ends:
            return genesis(self.charters[0].federation)
        last = self.ends[-1]
        return digest(last.receipt if isinstance(last, Certified) else last)

    @property
    def number(self) -> int:
        if not self.ends:
            return 1
        last = self.ends[-1]
        return (last.receipt.number if isinstance(last, Certified) else last.number) + 1

    def publish(self, voters: Sequence[str] | None = None, by: Identity = ENCLAVE) -> Certified:
        receipt = by.sign(blank(self.number, self.previous, self.newest))
        certified = certify(receipt, self.electors(), voters, by=by)
        self.ends.append(certified)
        return certified

    @property
    def published(self) -> list[Certified]:
        return [each for each in self.ends if isinstance(each, Certified)]

    def links(self, *, newest: bool = True) -> list[Link]:
        shown = set(map(digest, milestones(self.published)))
        ends = [e for e in self.ends if not newest or isinstance(e, Abandon) or digest(e) in shown]
        return list(chain(self.charters, ends))


def blank(number, previous, federation, **changes):
    zero = bytes(32)
    plain = Receipt(
        number=number,
        round_id=zero,
        previous=previous,
        federation=federation.digest(),
        revision=federation.revision,
        evidence="simulation",
        failure="",
        aggregate=zero,
        model=zero,
        cohort=zero,
        participants=3,
        kept=3,
        rejected=(),
        commitment=zero,
        disclosed=False,
        selected=(),
        rule="multi-krum",
        note="",
        masking="none",
        distances="inside",
        cautions=(),
        metrics=None,
        signature=UNSIGNED,
    )
    return replace(plain, **changes)


def certify(receipt, electors, voters=None, *, by=ENCLAVE, salt=b"s" * 32):
    """Confirmed by these voters: the whole roster of the electors, unless given."""
    proposal = by.sign(
        Proposal(
            ID,
            receipt.number,
            receipt.previous,
            outcome_digest(salt, receipt),
            receipt.cohort,
            UNSIGNED,
        )
    )
    ballot = Ballot(proposal, electors)
    for name in [each.name for each in electors.clients] if voters is None else voters:
        ballot.add(confirm(proposal, ID, receipt.number, voter=name, identity=PEOPLE[name]))
    return Certified(receipt, ballot.certificate(salt))


def begin(links: Sequence[Link], federation: Federation, policy: Policy = POLICY) -> Client:
    """As a newcomer whose enclave has proved its key, and that this is its newest federation."""
    client = Client("grace", PEOPLE["grace"], federation, ENCLAVE.public)
    return begin_with([chain_link(each) for each in links], client, policy=policy)


@pytest.fixture
def story() -> Chain:
    """Two rounds; alice is revoked, and erin enrolled; two rounds more."""
    made = Chain([charter(("alice", "bob", "carol", "dave"))], [])
    made.publish()
    made.publish()
    made.charters.append(charter(("bob", "carol", "dave", "erin"), 2, revoked=("alice",)))
    made.publish()
    made.publish()
    made.publish()
    return made


def test_a_newcomer_begins_behind_the_newest_receipt(story):
    client = begin(story.links(), story.newest)
    assert client.last == story.published[-1].receipt
    assert client.next_number == 6
    assert client.electors == story.newest
    assert [each.receipt.number for each in milestones(story.published)] == [1, 2, 3, 5]


def test_one_vote_above_half_of_all_and_f_is_enough(story):
    story.publish(voters=("bob", "carol", "erin"))
    assert begin(story.links(), story.newest).next_number == 7


def test_before_the_first_receipt_the_founding_charter_s_voters_are_asked():
    founding, newer = charter(NAMES[:4]), charter(NAMES[:5], 2)
    client = begin([founding, newer], newer.federation)
    assert (client.last, client.electors) == (None, founding.federation)
    late = Chain([founding, newer], [])
    late.publish()
    assert begin(late.links(), newer.federation).next_number == 2


def with_votes(certified, change):
    certificate = certified.certificate
    return replace(certified, certificate=replace(certificate, votes=change(certificate.votes)))


def last_with(change):
    """The last receipt with other votes."""

    def show(story):
        *rest, last = story.links()
        return [*rest, with_votes(last, change)]

    return show


def revoked_key(story):
    """Alice's vote in the place of one that is missing: she was enrolled when the chain began."""
    *rest, last = story.links()
    proposal = last.certificate.proposal
    made = confirm(proposal, ID, proposal.number, voter="alice", identity=PEOPLE["alice"])
    vote = replace(last.certificate.votes[0], voter="alice", signature=made.signature)
    return [*rest, with_votes(last, lambda votes: (vote, *votes[:2]))]


def reused_votes(story):
    """Those of the round before."""
    *rest, last = story.links()
    before = story.published[-2].certificate.votes
    return [*rest, with_votes(last, lambda votes: before)]


def other_receipt(story):
    """The certificate of the true one, beside another that the same enclave has signed."""
    *rest, last = story.links()
    other = ENCLAVE.sign(replace(last.receipt, model=b"x" * 32))
    return [*rest, replace(last, receipt=other)]


def newest_roster(story):
    """Round 3, which announces the new roster, confirmed by that one and not by the one before."""
    third = certify(story.published[2].receipt, story.newest)
    return shown_instead(story, third)


def old_roster(story):
    """The newest round, confirmed by the roster that was replaced."""
    last = certify(story.published[-1].receipt, story.charters[0].federation)
    return shown_instead(story, last)


def shown_instead(story, certified):
    number = certified.receipt.number
    return [
        certified if isinstance(each, Certified) and each.receipt.number == number else each
        for each in story.links()
    ]


def without_receipt(number):
    def show(story):
        return [
            each
            for each in story.links()
            if not (isinstance(each, Certified) and each.receipt.number == number)
        ]

    return show


def without_charter(revision):
    def show(story):
        return [
            each
            for each in story.links()
            if not (isinstance(each, Charter) and each.federation.revision == revision)
        ]

    return show


def another_enclave(story):
    """A chain of the same charters, by a key that proved nothing."""
    made = Chain(story.charters[:1], [])
    made.publish(by=MALLORY)
    made.charters.append(story.charters[1])
    made.publish(by=MALLORY)
    return made.links()


def another_enclave_s_proposal(story):
    """The votes are for a proposal that the enclave has not signed."""
    *rest, last = story.links()
    return [*rest, certify(last.receipt, story.newest, by=MALLORY)]


def later_charter_first(story):
    """As if the federation had begun with it, so that its voters confirm the first round."""
    receipt = ENCLAVE.sign(blank(1, genesis(story.charters[0].federation), story.newest))
    return [story.charters[1], certify(receipt, story.newest)]


def backwards(story):
    links = story.links()
    return [*links, links[1]]


def unsigned_charter(story):
    forged = MALLORY.sign(story.charters[0])
    return [forged, *story.links()[1:]]


def another_federation(story):
    other = replace(story.charters[0].federation, id=b"o" * 32)
    return [AUTHORITY.sign(Charter(other, UNSIGNED)), *story.links()[1:]]


FORGED = {
    "one vote short": (last_with(lambda votes: votes[:2]), ReceiptRefused, "needs 3"),
    "no vote at all": (last_with(lambda votes: ()), ReceiptRefused, "needs 3"),
    "a client counted twice": (
        last_with(lambda votes: (*votes[:2], votes[0])),
        ReceiptRefused,
        "counts a voter twice",
    ),
    "a client counted twice beside enough others": (
        last_with(lambda votes: (*votes, votes[0])),
        ReceiptRefused,
        "counts a voter twice",
    ),
    "a vote in another's name": (
        last_with(lambda votes: (*votes[:2], replace(votes[0], voter="erin"))),
        OpenError,
        "Confirmation",
    ),
    "a revoked key": (revoked_key, ReceiptRefused, "'alice' has no vote in round 5"),
    "the votes of the round before": (reused_votes, OpenError, "Confirmation"),
    "the certificate of another receipt": (other_receipt, ReceiptRefused, "another receipt"),
    "no certificate": (
        lambda story: [*story.links()[:-1], replace(story.links()[-1], certificate=None)],
        ReceiptRefused,
        "nobody confirms",
    ),
    "the newest roster's quorum": (newest_roster, ReceiptRefused, "'erin' has no vote in round 3"),
    "the old roster's quorum": (old_roster, ReceiptRefused, "'alice' has no vote in round 5"),
    "without the first receipt": (without_receipt(1), ReceiptRefused, "nothing that is shown"),
    "without the receipt before a change of charters": (
        without_receipt(2),
        ReceiptRefused,
        "who had to confirm round 3",
    ),
    "without the receipt that announces a charter": (
        without_receipt(3),
        ReceiptRefused,
        "who had to confirm round 5",
    ),
    "without the founding charter": (without_charter(1), ReceiptRefused, "round 1"),
    "without the newest charter": (without_charter(2), ReceiptRefused, "round 3"),
    "a later charter shown as the founding one": (
        later_charter_first,
        ReceiptRefused,
        "who had to confirm round 1",
    ),
    "another enclave's chain": (another_enclave, OpenError, "Receipt"),
    "another enclave's proposal": (another_enclave_s_proposal, OpenError, "Proposal"),
    "a receipt once more": (backwards, ReceiptRefused, "does not go forward"),
    "a charter that the authority did not sign": (unsigned_charter, AttestationRefused, "false"),
    "a charter of another federation of this authority": (
        another_federation,
        AttestationRefused,
        Refusal.FEDERATION,
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_does_not_prove_the_newest_receipt_is_refused(story, what):
    show, error, message = FORGED[what]
    with pytest.raises(error, match=message):
        begin(show(story), story.newest)
    assert begin(story.links(), story.newest).next_number == 6


def test_a_chain_that_goes_on_behind_an_abandoned_round_is_proved_from_there():
    first = charter(NAMES[:4], 3)
    abandon = AUTHORITY.sign(Abandon(7, b"p" * 32, first.federation, bytes(32), (), UNSIGNED))
    made = Chain([first], [abandon])
    client = begin(made.links(), made.newest)
    assert (client.last, client.electors) == (abandon, made.newest)
    made.publish()
    made.charters.append(charter(NAMES[:5], 4))
    made.publish()
    client = begin(made.links(), made.newest)
    assert client.next_number == 10
    with pytest.raises(ReceiptRefused, match="who had to confirm round 8"):
        begin([each for each in made.links() if each != abandon], made.newest)
    with pytest.raises(OpenError, match="Abandon"):
        begin([first, MALLORY.sign(abandon), *made.links()[2:]], made.newest)


@st.composite
def chains(draw) -> Chain:
    """Any number of rounds under charters whose rosters and f change at any time."""
    made = Chain([charter(draw(rosters))], [])
    for _ in range(draw(st.integers(0, 7))):
        for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
            revision = made.newest.revision + draw(st.integers(1, 3))
            names = draw(rosters)
            f = draw(st.integers(0, (len(names) - 3) // 2))
            made.charters.append(charter(names, revision, f=f))
        made.publish(voters=quorum(made.electors(), draw(st.randoms(use_true_random=False))))
    return made


rosters = st.permutations(NAMES).flatmap(
    lambda names: st.integers(3, len(NAMES)).map(lambda n: names[:n])
)


def quorum(electors, chance):
    """Just enough voters."""
    names = [each.name for each in electors.clients]
    chance.shuffle(names)
    return names[: (len(names) + electors.terms.f) // 2 + 1]


@given(chains())
def test_milestones_always_suffice(made):
    client = begin(made.links(), made.newest)
    assert client.next_number == made.number
    assert client.electors == made.electors()
    whole = begin(made.links(newest=False), made.newest)
    assert (whole.last, whole.electors) == (client.last, client.electors)


@given(chains())
def test_without_any_link_that_is_needed_nothing_is_believed(made):
    links = made.links()
    ends = [each for each in links if isinstance(each, Certified)]
    named = {each.receipt.federation for each in ends}
    for at, link in enumerate(links):
        without = links[:at] + links[at + 1 :]
        if isinstance(link, Charter):
            needed = bool(ends) and (at == 0 or link.federation.digest() in named)
        else:
            needed = link is not ends[-1]
        if needed:
            with pytest.raises(ReceiptRefused):
                begin(without, made.newest)
        else:  # The chain is as long as it is shown: at most its end is kept from a newcomer.
            assert begin(without, made.newest).next_number <= made.number


@given(chains(), st.data())
def test_with_a_vote_less_anywhere_nothing_is_believed(made, data):
    links = made.links()
    ends = [at for at, each in enumerate(links) if isinstance(each, Certified)]
    if not ends:
        return
    at = data.draw(st.sampled_from(ends))
    lost = data.draw(st.integers(0, len(links[at].certificate.votes) - 1))

    def drop(votes):
        return votes[:lost] + votes[lost + 1 :]

    links[at] = with_votes(links[at], drop)
    with pytest.raises(ReceiptRefused, match="confirmations and needs"):
        begin(links, made.newest)


# Over the wire.


def test_a_newcomer_joins_behind_changed_charters(connect, service, charter):
    service.publish()
    service.adopt(charter(revision=2))
    service.publish()
    service.publish()
    service.adopt(charter(revision=3))
    with connect() as client:
        assert client.fetch().round == 4
        assert client.submit(np.ones(D)).receipt.revision == 3


@pytest.mark.parametrize("number", [1, 2])
def test_a_newcomer_is_shown_no_forged_certificate(connect, service, charter, sealed, number):
    service.publish()
    service.publish()

    def short(links):
        return [
            with_votes(each, lambda votes: votes[1:])
            if isinstance(each, Certified) and each.receipt.number == number
            else each
            for each in links
        ]

    service.lies["GetChain"] = short
    with connect("bob") as bob:
        with pytest.raises(ReceiptRefused, match="2 confirmations and needs 3"):
            bob.fetch()
        assert sealed == []
        service.lies.clear()
        assert bob.fetch().round == 3


def test_a_charter_that_has_expired_is_joined_by_nobody(connect, service, charter, sealed):
    """So that a host cannot withhold the next one, with a revocation in it, for ever."""
    now = int(time.time())
    service.adopt(charter(revision=2, expires=now - 3600))
    with connect() as client, pytest.raises(AttestationRefused, match=Refusal.EXPIRED):
        client.fetch()
    assert sealed == []
    service.publish()  # Rounds of the past, whose charter was good then, are still followed.
    service.adopt(charter(revision=3, expires=now + 3600))
    with connect() as client:
        assert client.fetch().round == 2
        assert client.submit(np.ones(D)).receipt.revision == 3
