"""Who confirms, how many have to, and what proves it. What a host could forge is refused."""

import hashlib
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka import merkle
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, digest, encode, pack
from ostraka.errors import OpenError, ReceiptRefused
from ostraka.messages import (
    NO_PROPOSAL,
    Abandon,
    Certificate,
    Certified,
    Confirmation,
    Proposal,
    Receipt,
    UpdateHeader,
    Vote,
    genesis,
)
from ostraka.protocol.confirm import (
    Ballot,
    Electorate,
    confirm,
    electorates,
    is_proved,
    leaf,
    outcome_digest,
    require_certified,
)

ENCLAVE, AUTHORITY, STRANGER = (Identity(each * 32) for each in (b"e", b"a", b"s"))
SALT = b"t" * 32
VOTERS = {
    f"{kind}-{i}": Identity(hashlib.sha256(f"{kind}-{i}".encode()).digest())
    for kind in ("client", "witness")
    for i in range(9)
}


def members(kind, count):
    return tuple(Member(f"{kind}-{i}", VOTERS[f"{kind}-{i}"].public) for i in range(count))


def federation(n=7, f=2, witnesses=0, **terms):
    return Federation(
        Terms(Manifest.flat(4), f=f, masking="none", **terms),
        members("client", n),
        (),
        AUTHORITY.public,
        b"i" * 32,
        witnesses=members("witness", witnesses),
    )


SEVEN = federation()  # its quorum is 5
BOTH = federation(5, 1, witnesses=3, confirm="both", witness_f=1)  # 4 clients and 3 witnesses
WITNESSED = federation(5, 1, witnesses=3, confirm="witnesses")  # 2 witnesses


def receipt(electors=SEVEN, **changes):
    blank = Receipt(
        number=1,
        round_id=b"r" * 32,
        previous=genesis(electors),
        federation=electors.digest(),
        revision=electors.revision,
        evidence="in-process",
        failure="",
        aggregate=bytes(32),
        model=b"m" * 32,
        cohort=b"c" * 32,
        participants=5,
        kept=4,
        rejected=(),
        commitment=bytes(32),
        disclosed=False,
        selected=(),
        rule="arc+nnm+geometric-median",
        note="",
        masking="none",
        distances="inside",
        cautions=(),
        metrics=None,
        signature=UNSIGNED,
    )
    return ENCLAVE.sign(replace(blank, **changes))


def proposal(of=None, electors=SEVEN, **changes):
    of = of or receipt(electors)
    blank = Proposal(
        electors.id, of.number, of.previous, outcome_digest(SALT, of), of.cohort, UNSIGNED
    )
    return ENCLAVE.sign(replace(blank, **changes))


def vote(voter, about=None, identity=None, **changes):
    """A confirmation, signed by its voter unless given, and with any fields."""
    about = about or proposal()
    identity = identity or VOTERS[voter]
    cast = confirm(about, about.federation, about.number, voter=voter, identity=identity)
    return identity.sign(replace(cast, **changes)) if changes else cast


def kept(votes):
    return tuple(Vote(each.voter, each.signature) for each in votes)


def names(kind, count):
    return [f"{kind}-{i}" for i in range(count)]


def served(voters, electors=SEVEN, *, shown=None, about=None):
    """A receipt that these voters have confirmed. shown, about: another receipt or proposal."""
    shown = shown or receipt(electors)
    about = about or proposal(shown, electors)
    votes = kept(vote(name, about) for name in voters)
    return Certified(shown, Certificate(about, SALT, votes))


# How many.


@given(n=st.integers(1, 2_000), f=st.integers(0, 2_000))
def test_a_quorum_is_the_least_number_above_half_of_n_and_f(n, f):
    voters = Electorate(tuple(Member(str(i), bytes(32)) for i in range(n)), f)
    assert 2 * voters.quorum > n + f
    assert 2 * (voters.quorum - 1) <= n + f
    assert voters.silent == n - voters.quorum
    assert (voters.silent >= 0) == (n > f), "more voters than Byzantine ones can agree"
    assert (voters.silent >= f) == (n > 3 * f), "f silent ones keep nobody waiting"


@pytest.mark.parametrize("n", range(1, 8))
def test_any_two_quorums_share_an_honest_voter_and_with_one_vote_fewer_some_do_not(n):
    for f in range(n):
        quorum = Electorate(members("client", n), f).quorum
        everyone = [frozenset(each) for each in combinations(range(n), quorum)]
        assert all(len(one & other) > f for one in everyone for other in everyone)
        fewer = [frozenset(each) for each in combinations(range(n), quorum - 1)]
        assert any(len(one & other) <= f for one in fewer for other in fewer)


def test_who_is_asked_is_said_by_the_terms():
    clients, witnesses = Electorate(members("client", 5), 1), Electorate(members("witness", 3), 1)
    assert electorates(federation(5, 1)) == (clients,)
    assert electorates(BOTH) == (clients, witnesses)
    assert electorates(replace(BOTH, terms=replace(BOTH.terms, confirm="witnesses"))) == (
        witnesses,
    )
    assert electorates(federation(5, 1, confirm="none")) == ()


def header(**changes):
    blank = UpdateHeader(
        b"f" * 32, b"r" * 32, b"k" * 32, "client-0", b"u" * 32, b"m" * 32, 4, 4, 1, b"", UNSIGNED
    )
    return VOTERS["client-0"].sign(replace(blank, **changes))


def test_a_leaf_is_of_the_whole_signed_header():
    others = (
        header(upload_id=bytes(32)),
        header(round_id=bytes(32)),
        replace(header(), signature=bytes(64)),
    )
    assert len({leaf(each) for each in (header(), *others)}) == 4
    assert leaf(header()) == merkle.leaf(encode(header()))


# The outcome.


def test_the_commitment_is_to_the_whole_receipt_and_salted():
    assert outcome_digest(SALT, receipt()) == (
        hashlib.sha256(pack(b"ostraka/outcome/v1", SALT, encode(receipt()))).digest()
    )
    seen = {outcome_digest(salt, receipt()) for salt in (SALT, bytes(32), b"u" * 32)}
    changed: list[dict[str, Any]] = [
        {"model": bytes(32)},
        {"failure": "x"},
        {"kept": 5},
        {"selected": ("client-1",)},
    ]
    seen |= {outcome_digest(SALT, receipt(**change)) for change in changed}
    assert len(seen) == 7


# Counting.


FOREIGN = {
    "of a stranger": lambda: vote("stranger", identity=STRANGER),
    "of a stranger under a client's name": lambda: vote("client-3", identity=STRANGER),
    "of another client under a client's name": lambda: vote(
        "client-3", identity=VOTERS["client-4"]
    ),
    "of a witness, and none is asked": lambda: vote("witness-0"),
    "of the enclave itself": lambda: vote("client-3", identity=ENCLAVE),
    "for another proposal": lambda: vote("client-3", proposal(cohort=bytes(32))),
    "for none": lambda: vote("client-3", proposal=NO_PROPOSAL),
    "of another number": lambda: vote("client-3", number=2),
    "of another federation": lambda: vote("client-3", federation=bytes(32)),
    "with another client's signature": lambda: replace(vote("client-4"), voter="client-3"),
    "that nobody signed": lambda: replace(vote("client-3"), signature=UNSIGNED),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_vote_is_refused_and_a_good_one_still_counts(what):
    ballot = Ballot(proposal(), SEVEN)
    with pytest.raises(OpenError):
        ballot.add(FOREIGN[what]())
    assert (ballot.votes, ballot.missing) == ({}, 5)
    assert ballot.add(vote("client-3"))
    assert (list(ballot.votes), ballot.missing) == (["client-3"], 4)


def test_a_revoked_key_has_no_vote():
    older = federation(7, 1)
    left = replace(older.clients[0], name="former")
    newer = replace(older, clients=older.clients[1:], revoked=(left,), revision=2)
    ballot = Ballot(proposal(electors=newer), newer)
    for name in ("former", "client-0"):
        with pytest.raises(OpenError):
            ballot.add(vote(name, ballot.proposal, VOTERS["client-0"]))
    assert ballot.add(vote("client-1", ballot.proposal))


def test_a_vote_counts_once_however_often_it_comes():
    ballot = Ballot(proposal(), SEVEN)
    assert [ballot.add(vote("client-2")) for _ in range(9)] == [True] + [False] * 8
    assert (len(ballot.votes), ballot.missing, ballot.confirmed) == (1, 4, False)
    for name in names("client", 4):
        ballot.add(vote(name))
    assert (ballot.missing, ballot.confirmed) == (1, False)
    with pytest.raises(ReceiptRefused, match="1 confirmations are missing"):
        ballot.certificate(SALT)
    assert ballot.awaited == {"client-4", "client-5", "client-6"}
    assert (ballot.awaits("client-6"), ballot.awaits("client-0")) == (True, False)
    assert not ballot.awaits("stranger")
    ballot.add(vote("client-6"))
    assert (ballot.missing, ballot.confirmed) == (0, True)
    require_certified(Certified(receipt(), ballot.certificate(SALT)), SEVEN, ENCLAVE.public)


def test_votes_that_come_late_are_in_the_certificate_too():
    ballot = Ballot(proposal(), SEVEN)
    for name in names("client", 7):
        ballot.add(vote(name))
    certificate = ballot.certificate(SALT)
    assert certificate is not None
    assert {each.voter for each in certificate.votes} == set(names("client", 7))
    assert ballot.missing == 0


def test_both_electorates_have_to_confirm():
    about = proposal(electors=BOTH)
    ballot = Ballot(about, BOTH)
    assert ballot.missing == 4 + 3
    for name in names("client", 5):
        ballot.add(vote(name, about))
    assert (ballot.missing, ballot.confirmed) == (3, False), "no client stands for a witness"
    for name in names("witness", 2):
        ballot.add(vote(name, about))
    assert (ballot.missing, ballot.confirmed) == (1, False)
    ballot.add(vote("witness-2", about))
    assert ballot.confirmed


def test_witnesses_alone_need_no_client():
    about = proposal(electors=WITNESSED)
    ballot = Ballot(about, WITNESSED)
    with pytest.raises(OpenError):
        ballot.add(vote("client-0", about))
    for name in names("witness", 2):
        ballot.add(vote(name, about))
    assert ballot.confirmed


def test_where_nobody_is_asked_there_is_no_certificate():
    nobody = federation(confirm="none")
    ballot = Ballot(proposal(electors=nobody), nobody)
    assert (ballot.confirmed, ballot.missing, ballot.awaited) == (True, 0, frozenset())
    with pytest.raises(OpenError):
        ballot.add(vote("client-0", ballot.proposal))
    assert ballot.certificate(SALT) is None
    require_certified(Certified(receipt(nobody), None), nobody, ENCLAVE.public)


# What is proved.


def test_a_quorum_is_enough_whoever_it_is():
    for voters in combinations(names("client", 7), 5):
        require_certified(served(voters), SEVEN, ENCLAVE.public)


def altered(part, **changes):
    """A certificate of everybody with other fields."""
    good = served(names("client", 7))
    if part == "receipt":
        return replace(good, receipt=ENCLAVE.sign(replace(good.receipt, **changes)))
    return replace(good, certificate=replace(good.certificate, **changes))


def about_another(**changes):
    """The enclave signed another proposal, and everybody confirmed that."""
    return served(names("client", 7), about=proposal(**changes))


FORGED = {
    "no certificate": (
        lambda: Certified(receipt(), None),
        ReceiptRefused,
        "nobody confirms the receipt of round 1",
    ),
    "no vote": (lambda: served([]), ReceiptRefused, "has 0 confirmations and needs 5"),
    "one vote short": (
        lambda: served(names("client", 4)),
        ReceiptRefused,
        "has 4 confirmations and needs 5",
    ),
    "one vote short, and one counted twice": (
        lambda: served([*names("client", 4), "client-2"]),
        ReceiptRefused,
        "counts a voter twice",
    ),
    "one counted twice, and enough besides": (
        lambda: served([*names("client", 7), "client-2"]),
        ReceiptRefused,
        "counts a voter twice",
    ),
    "one vote short, and a witness's": (
        lambda: served([*names("client", 4), "witness-0"]),
        ReceiptRefused,
        "'witness-0' has no vote",
    ),
    "a voter of another roster, and enough besides": (
        lambda: served(names("client", 8)),
        ReceiptRefused,
        "'client-7' has no vote in round 1",
    ),
    "a forged signature": (
        lambda: altered(
            "certificate",
            votes=(*kept(map(vote, names("client", 4))), Vote("client-4", bytes(64))),
        ),
        OpenError,
        "does not open",
    ),
    "a vote that its neighbour signed": (
        lambda: altered(
            "certificate",
            votes=(
                *kept(map(vote, names("client", 4))),
                *kept([vote("client-4", identity=VOTERS["client-3"])]),
            ),
        ),
        OpenError,
        "does not open",
    ),
    "votes for another proposal": (
        lambda: altered(
            "certificate",
            votes=kept(vote(name, proposal(cohort=bytes(32))) for name in names("client", 7)),
        ),
        OpenError,
        "does not open",
    ),
    "votes for none": (
        lambda: altered(
            "certificate",
            votes=kept(vote(name, proposal=NO_PROPOSAL) for name in names("client", 7)),
        ),
        OpenError,
        "does not open",
    ),
    "votes of another number": (
        lambda: altered(
            "certificate", votes=kept(vote(name, number=2) for name in names("client", 7))
        ),
        OpenError,
        "does not open",
    ),
    "another salt": (lambda: altered("certificate", salt=bytes(32)), ReceiptRefused, "another rec"),
    "another receipt": (
        lambda: altered("receipt", model=bytes(32)),
        ReceiptRefused,
        "for another receipt",
    ),
    "a null step instead": (
        lambda: altered("receipt", failure="the rule failed"),
        ReceiptRefused,
        "for another receipt",
    ),
    "another cohort in the receipt": (
        lambda: altered("receipt", cohort=bytes(32)),
        ReceiptRefused,
        "for another receipt",
    ),
    "a proposal that nobody signed": (
        lambda: served(names("client", 7), about=replace(proposal(), signature=UNSIGNED)),
        OpenError,
        "does not open",
    ),
    "a proposal that a stranger signed": (
        lambda: served(names("client", 7), about=STRANGER.sign(proposal())),
        OpenError,
        "does not open",
    ),
    "a proposal that a client signed": (
        lambda: served(names("client", 7), about=VOTERS["client-0"].sign(proposal())),
        OpenError,
        "does not open",
    ),
    "a proposal of another number": (
        lambda: about_another(number=2),
        ReceiptRefused,
        "for another receipt",
    ),
    "a proposal of another chain": (
        lambda: about_another(previous=bytes(32)),
        ReceiptRefused,
        "for another receipt",
    ),
    "a proposal of another cohort": (
        lambda: about_another(cohort=bytes(32)),
        ReceiptRefused,
        "for another receipt",
    ),
    "a proposal of another federation": (
        lambda: about_another(federation=bytes(32)),
        ReceiptRefused,
        "for another receipt",
    ),
    "a proposal of another outcome": (
        lambda: about_another(outcome=bytes(32)),
        ReceiptRefused,
        "for another receipt",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_certificate_is_refused(what):
    make, error, why = FORGED[what]
    with pytest.raises(error, match=why):
        require_certified(make(), SEVEN, ENCLAVE.public)


def test_another_roster_s_quorum_is_refused_both_ways():
    """Of the same federation, before and after a change."""
    few, many = federation(5, 1), replace(federation(9, 1), revision=2)
    require_certified(served(names("client", 4), few), few, ENCLAVE.public)
    require_certified(served(names("client", 6), many), many, ENCLAVE.public)
    with pytest.raises(ReceiptRefused, match="has 4 confirmations and needs 6"):
        require_certified(served(names("client", 4), few), many, ENCLAVE.public)
    with pytest.raises(ReceiptRefused, match="'client-5' has no vote"):
        require_certified(served(names("client", 6), many), few, ENCLAVE.public)


def test_a_revoked_key_proves_nothing_even_beside_a_quorum():
    newer = federation(7, 1)
    newer = replace(newer, revision=2, clients=newer.clients[1:], revoked=newer.clients[:1])
    require_certified(served(names("client", 7)[1:], newer), newer, ENCLAVE.public)
    with pytest.raises(ReceiptRefused, match="'client-0' has no vote"):
        require_certified(served(names("client", 7), newer), newer, ENCLAVE.public)


def test_neither_electorate_stands_for_the_other():
    def check(clients, witnesses, electors=BOTH):
        voters = [*names("client", clients), *names("witness", witnesses)]
        require_certified(served(voters, electors), electors, ENCLAVE.public)

    check(4, 3)
    with pytest.raises(ReceiptRefused, match="has 2 confirmations and needs 3"):
        check(5, 2)
    with pytest.raises(ReceiptRefused, match="has 3 confirmations and needs 4"):
        check(3, 3)
    check(0, 2, WITNESSED)
    with pytest.raises(ReceiptRefused, match="'client-0' has no vote"):
        check(1, 3, WITNESSED)


@given(
    st.sets(st.sampled_from(names("client", 5)), min_size=2),
    st.sets(st.sampled_from(names("witness", 3))),
    st.sampled_from(["clients", "witnesses", "both"]),
)
def test_what_a_ballot_counts_is_what_its_certificate_proves(clients, witnesses, who):
    electors = {"clients": federation(5, 1), "witnesses": WITNESSED, "both": BOTH}[who]
    about = proposal(electors=electors)
    ballot = Ballot(about, electors)
    for name in (clients if who != "witnesses" else set()) | (
        witnesses if who != "clients" else set()
    ):
        ballot.add(vote(name, about))
    shown = Certified(receipt(electors), Certificate(about, SALT, tuple(ballot.votes.values())))
    if ballot.confirmed:
        assert ballot.certificate(SALT) == shown.certificate
        require_certified(shown, electors, ENCLAVE.public)
    else:
        assert ballot.missing
        with pytest.raises(ReceiptRefused):
            require_certified(shown, electors, ENCLAVE.public)


# Abandoned numbers.

PROPOSALS = [proposal(cohort=bytes([mark]) * 32) for mark in range(3)]
SILENT, NONE = "silent", "none"


def abandon(votes, number=1):
    blank = Abandon(number, bytes(32), SEVEN, bytes(32), tuple(votes), UNSIGNED)
    return AUTHORITY.sign(blank)


def for_none(voter, number=1, federation_id=SEVEN.id, identity=None):
    return confirm(None, federation_id, number, voter=voter, identity=identity or VOTERS[voter])


def shows(voter, what):
    """What a voter has shown: nothing, none, one proposal, or two of them."""
    if what == SILENT:
        return []
    if what == NONE:
        return [for_none(voter)]
    return [vote(voter, PROPOSALS[each]) for each in what]


def can_pass(shown, f, quorum):
    """Whether some proposal may have a quorum, by trying every secret that fits what was shown.

    At most f voters are Byzantine and vote for all. The others have one vote, which is the one that
    they showed, if they showed any.
    """
    voters = range(len(shown))
    for count in range(f + 1):
        for liars in map(set, combinations(voters, count)):
            honest = [each for each in voters if each not in liars]
            if any(len(shown[each]) == 2 for each in honest):
                continue  # Only liars show two.
            secrets = [
                [shown[each][0] if shown[each] != NONE else NONE]
                if shown[each] != SILENT
                else [NONE, 0, 1, 2]
                for each in honest
            ]
            for votes in product(*secrets):
                if any(len(liars) + votes.count(each) >= quorum for each in range(3)):
                    return True
    return False


@pytest.mark.parametrize(
    ("n", "f"),
    [(n, f) for n in range(1, 5) for f in range(n)]
    + [pytest.param(5, f, marks=pytest.mark.soak) for f in range(3)],
)
def test_an_abandoned_number_is_proved_iff_no_secret_votes_could_have_released_it(n, f):
    """Witnesses, since there may be any number of them and of liars among them."""
    electors = federation(3, 0, witnesses=n, confirm="witnesses", witness_f=f)
    (voters,) = electorates(electors)
    ways: tuple[str | tuple[int, ...], ...] = (SILENT, NONE, (0,), (1,), (0, 1))
    cast = {(i, way): shows(f"witness-{i}", way) for i in range(n) for way in ways}
    outcomes = set()
    for shown in product(ways, repeat=n):
        if sum(len(each) == 2 for each in shown) > f:
            continue  # More liars than there are.
        votes = [each for i, way in enumerate(shown) for each in cast[i, way]]
        proved = is_proved(abandon(votes), electors)
        assert proved != can_pass(shown, f, voters.quorum), shown
        outcomes.add(proved)
    assert outcomes == {True, False}


def test_votes_that_prove_nothing_do_not_count():
    """Five of seven say that they confirm none: two who are silent and two liars are no quorum."""
    good = [for_none(name) for name in names("client", 7)]
    assert not is_proved(abandon([]), SEVEN)
    assert is_proved(abandon(good[:5]), SEVEN)
    assert not is_proved(abandon(good[:4]), SEVEN)
    for idle in (
        good[3],
        for_none("stranger", identity=STRANGER),
        for_none("client-4", identity=STRANGER),
        for_none("client-4", number=2),
        for_none("client-4", federation_id=bytes(32)),
        for_none("witness-0"),
        replace(good[4], signature=UNSIGNED),
        Confirmation(SEVEN.id, 1, NO_PROPOSAL, "client-4", good[3].signature),
    ):
        assert not is_proved(abandon([*good[:4], idle]), SEVEN)
        assert is_proved(abandon([idle, *good[:5]]), SEVEN), "nor does it spoil the others"


def test_the_proof_is_about_its_own_number():
    good = [for_none(name) for name in names("client", 7)]
    assert not is_proved(abandon(good, number=2), SEVEN)


def test_one_electorate_that_cannot_confirm_is_enough():
    clients = [for_none(name) for name in names("client", 5)]
    witnesses = [for_none(name) for name in names("witness", 3)]
    assert is_proved(abandon(clients), BOTH)
    assert is_proved(abandon(witnesses), BOTH)
    assert not is_proved(abandon(clients[:2] + witnesses[:1]), BOTH)
    assert not is_proved(abandon(clients), WITNESSED)


def test_where_nobody_confirms_nothing_proves_that_nothing_was_released():
    nobody = federation(confirm="none")
    assert not is_proved(abandon([for_none(name) for name in names("client", 7)]), nobody)


def test_a_vote_is_the_same_bytes_each_time_and_for_none_it_is_for_no_proposal():
    assert vote("client-1") == vote("client-1")
    assert vote("client-1").proposal == digest(proposal())
    assert for_none("client-1").proposal == NO_PROPOSAL
