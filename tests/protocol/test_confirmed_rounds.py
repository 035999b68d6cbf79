"""Of each number at most one outcome is released, whatever a host copies, restores or withholds."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ostraka import merkle
from ostraka.config import Federation, Member
from ostraka.core import loops, optimiser, rules
from ostraka.core.rules import Gram, Options, Plan, Rule
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import (
    LocalProtocolError,
    OpenError,
    ReceiptRefused,
    Rejection,
    RolledBack,
    RoundFailed,
    TooFewUpdates,
)
from ostraka.merkle import is_under, path_to
from ostraka.messages import NO_PROPOSAL, Certified, Charter, Proposal, vector_digest
from ostraka.protocol import host
from ostraka.protocol.client import Client, Voted
from ostraka.protocol.confirm import (
    Ballot,
    confirm,
    leaf,
    outcome_digest,
)
from ostraka.protocol.enclave import Enclave, Pending
from ostraka.protocol.enclave.cohort import Publication
from ostraka.protocol.enclave.propose import NO_AGGREGATE


def outcome(simulation, *, but=()):
    """A round of all clients but these, up to its outcome, which nobody has confirmed."""
    round_ = simulation.open()
    round_.send_all(but=but)
    return round_.finish()


def proposal_of(simulation, *, but=()):
    return outcome(simulation, but=but).pending.proposal


def copies(simulation):
    """Two outcomes of one number, of two enclaves with the same state: one lacks client-3."""
    first = outcome(simulation)
    simulation.restart()
    return first, outcome(simulation, but=[3])


def vote_of(simulation, row, proposal):
    """The vote of a client that remembers nothing and confirms what it is shown."""
    return confirm(
        proposal,
        proposal.federation,
        proposal.number,
        voter=simulation.names[row],
        identity=simulation.identities[row],
    )


# One vote for a number, ever.


def test_a_client_confirms_one_proposal_of_a_number_and_shows_it_to_whoever_asks_again(simulate):
    simulation = simulate()
    first, second = (each.pending.proposal for each in copies(simulation))
    assert (first.number, first.previous) == (second.number, second.previous)
    voted = simulation.clients[0].vote(first)
    assert voted.voted == Voted(1, first)
    assert voted.vote(first) == voted
    assert encode(voted.vote(first).confirmation()) == encode(voted.confirmation())
    with pytest.raises(RolledBack) as caught:
        voted.vote(second)
    assert (caught.value.number, caught.value.proof) == (1, first)
    assert isinstance(caught.value.proof, Proposal)
    check_signature(caught.value.proof, simulation.enclave.receipt_key)
    assert voted.confirmation().proposal == digest(first)


def test_a_vote_names_its_federation_its_number_and_its_voter(simulate):
    simulation = simulate()
    proposal = proposal_of(simulation)
    vote = simulation.clients[4].vote(proposal).confirmation()
    check_signature(vote, simulation.identities[4].public)
    assert (vote.federation, vote.number) == (simulation.federation.id, 1)
    assert (vote.proposal, vote.voter) == (digest(proposal), "client-4")


def test_a_client_that_has_not_voted_has_nothing_to_show(simulate):
    with pytest.raises(LocalProtocolError, match="has not voted"):
        simulate().clients[0].confirmation()


def test_however_a_host_divides_the_clients_between_two_copies_one_is_released_at_most(simulate):
    """Six clients that remember, and one that confirms everything."""
    simulation = simulate(n=7, f=1)
    first, second = (each.pending.proposal for each in copies(simulation))
    released = set()
    for shown in product((first, second), repeat=6):
        ballots = {each: Ballot(each, simulation.federation) for each in (first, second)}
        for client, proposal in zip(simulation.clients, shown, strict=False):
            voted = client.vote(proposal)
            ballots[proposal].add(voted.confirmation())
            with pytest.raises(RolledBack):
                voted.vote(second if proposal is first else first)
        for ballot in ballots.values():
            ballot.add(vote_of(simulation, 6, ballot.proposal))
        confirmed = [each for each, ballot in ballots.items() if ballot.confirmed]
        assert len(confirmed) <= 1
        released.update(confirmed)
    assert released == {first, second}, "either can be, and the clients decide which"


def test_nothing_lower_is_ever_signed_again(simulate):
    simulation = simulate()
    proposals = []
    for _ in range(3):
        proposed = outcome(simulation)
        proposals.append(proposed.pending.proposal)
        simulation.follow(proposed)
    client = simulation.clients[0]
    assert client.voted == Voted(3, proposals[2])
    for old in proposals[:2]:
        with pytest.raises(ReceiptRefused, match="no vote left for round"):
            client.vote(old)
    assert client.vote(proposals[2]) == client, "a late one is confirmed as it was"

    # Nor if its chain is an older one than its vote: the vote is kept by itself.
    behind = replace(client, last=None)
    for old in proposals[:2]:
        with pytest.raises(ReceiptRefused, match="no vote left for round"):
            behind.vote(old)
    assert behind.confirmation().number == 3


def test_a_client_that_has_voted_does_not_join_that_number_again(simulate):
    simulation = simulate()
    round_ = simulation.open()
    round_.send_all()
    proposal = round_.finish().pending.proposal
    voted = simulation.clients[0].vote(proposal)
    simulation.restart()
    again = simulation.open()
    for offer in (round_.offer, again.offer):
        with pytest.raises(RolledBack) as caught:
            simulation.join(voted, offer)
        assert caught.value.proof == proposal
    assert simulation.join(simulation.clients[1], again.offer), "whoever has not voted may"
    none = simulation.clients[1].vote_for_none(1)
    with pytest.raises(ReceiptRefused, match="confirms no outcome of 1"):
        simulation.join(none, again.offer)


FOREIGN = {
    "that a stranger signed": (lambda s, p: s.stranger.sign(p), OpenError, "does not open"),
    "that a client signed": (lambda s, p: s.identities[1].sign(p), OpenError, "does not open"),
    "that was altered": (
        lambda s, p: replace(p, outcome=bytes(32)),
        OpenError,
        "does not open",
    ),
    "of another federation of this enclave": (
        lambda s, p: s.sign(replace(p, federation=bytes(32))),
        ReceiptRefused,
        "another federation",
    ),
    "after another chain": (
        lambda s, p: s.sign(replace(p, previous=bytes(32))),
        ReceiptRefused,
        "does not continue the chain",
    ),
    "after a gap": (
        lambda s, p: s.sign(replace(p, number=3)),
        ReceiptRefused,
        "receipts 2 to 2 are missing",
    ),
    "of a number whose receipt it holds": (
        lambda s, p: s.sign(replace(p, number=1, outcome=bytes(32))),
        ReceiptRefused,
        "not newer|another proposal",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_client_does_not_confirm_a_proposal(simulate, what):
    change, error, why = FOREIGN[what]
    simulation = simulate()
    simulation.follow(outcome(simulation))
    proposal = proposal_of(simulation)
    assert proposal.number == 2
    for voted in (simulation.clients[0].voted, None):
        client = replace(simulation.clients[0], voted=voted)
        with pytest.raises(error, match=why):
            client.vote(change(simulation, proposal))
        assert client.vote(proposal).voted == Voted(2, proposal)


def test_a_client_confirms_nothing_of_an_enclave_that_has_not_proved_itself(simulate):
    simulation = simulate()
    blank = replace(simulation.clients[0], receipt_key=None)
    with pytest.raises(ReceiptRefused, match="proved itself"):
        blank.vote(proposal_of(simulation))


# Released by a quorum, and not before.


def test_an_outcome_is_released_by_just_a_quorum(simulate):
    simulation = simulate(n=7, f=1)
    proposed = outcome(simulation)
    ballot = simulation.ballot(proposed, but=["client-1", "client-4", "client-5"])
    assert (ballot.missing, ballot.confirmed) == (1, False)
    with pytest.raises(ReceiptRefused, match="1 confirmations are missing"):
        ballot.certificate(proposed.pending.salt)
    simulation.clients[4] = simulation.clients[4].vote(ballot.proposal)
    ballot.add(simulation.clients[4].confirmation())
    served = Certified(proposed.receipt, ballot.certificate(proposed.pending.salt))
    for client in simulation.clients:
        assert client.follow(served).last == proposed.receipt


def test_neither_the_enclave_nor_a_client_goes_on_without_a_certificate(simulate):
    simulation = simulate(n=7, f=1)
    proposed = outcome(simulation)
    short = simulation.certify(proposed.receipt, by=simulation.names[:4])
    for served in (Certified(proposed.receipt, None), short):
        with pytest.raises(ReceiptRefused):
            simulation.enclave.follow(served, proposed.state)
        with pytest.raises(ReceiptRefused):
            simulation.clients[0].follow(served)
    assert simulation.open().offer.number == 1
    simulation.follow(proposed)
    assert simulation.open().offer.number == 2


def test_a_pending_outcome_outlives_the_enclave_bit_for_bit(simulate):
    """It is sealed and stored before anybody is asked. Whoever resumes it has the same outcome."""
    simulation = simulate()
    proposed = outcome(simulation)
    ballot = simulation.ballot(proposed)
    stored = decode(Pending, encode(proposed.pending))
    simulation.restart()
    resumed = simulation.enclave.ballot(stored)
    assert resumed.proposal == ballot.proposal
    for client in simulation.clients:
        assert resumed.add(client.confirmation()), "votes are shown again, and are the same"
    assert resumed.certificate(stored.salt) == ballot.certificate(proposed.pending.salt)
    served = Certified(stored.receipt, resumed.certificate(stored.salt))
    simulation.enclave.follow(served, proposed.state)
    with pytest.raises(LocalProtocolError, match="once"):
        simulation.enclave.ballot(stored)


def test_an_enclave_asks_only_about_what_it_signed_itself(simulate):
    simulation, other = simulate(), simulate(seed=1)
    pending = outcome(other).pending
    with pytest.raises(OpenError):
        simulation.enclave.ballot(pending)
    with pytest.raises(LocalProtocolError):
        simulation.enclave.ballot(replace(pending, proposal=simulation.sign(pending.proposal)))


def test_a_number_is_proposed_once(simulate):
    simulation = simulate()
    round_ = simulation.open()
    round_.send_all()
    round_.close()
    round_.measure()
    host = round_.host()
    host.finish(round_.cohort, round_.measured)
    with pytest.raises(LocalProtocolError, match="published once"):
        host.finish(round_.cohort, round_.measured)


# Whose quorum: that of the charter which the receipt before names.


def revise(simulation, clients: tuple[Member, ...], revoked: tuple[Member, ...] = ()) -> Federation:
    """The enclave and all clients go on under another roster."""
    old = simulation.federation
    newer = replace(
        old, revision=old.revision + 1, clients=clients, revoked=(*old.revoked, *revoked)
    )
    simulation.enclave.adopt(simulation.authority.sign(Charter(newer, UNSIGNED)))
    simulation.federation = newer
    simulation.clients = [client.adopt(newer) for client in simulation.clients]
    return newer


def enrol(simulation, count: int) -> None:
    """Newcomers, who begin with the newest receipt."""
    held = simulation.clients[0]
    for _ in range(count):
        row = len(simulation.names)
        simulation.names.append(f"client-{row}")
        simulation.identities.append(Identity.generate(simulation.entropy))
        simulation.rows = np.vstack([simulation.rows, simulation.rows[row % 7][None] * 1.01])
    joined = [
        Member(name, identity.public)
        for name, identity in zip(simulation.names, simulation.identities, strict=True)
    ]
    revise(simulation, tuple(joined))
    simulation.clients += [
        replace(simulation.client(row), last=held.last, electors=simulation.clients[0].electors)
        for row in range(len(simulation.clients), len(joined))
    ]


def test_newcomers_confirm_from_the_number_after_the_receipt_that_announces_them(simulate):
    simulation = simulate(n=7, f=1)  # needs 5
    simulation.follow(outcome(simulation))
    before = simulation.federation
    enrol(simulation, 4)  # 11 clients, which need 7
    proposed = outcome(simulation)
    assert proposed.receipt.revision == 2
    ballot = simulation.enclave.ballot(proposed.pending)
    assert (ballot.electors, ballot.missing) == (before, 5)
    with pytest.raises(ReceiptRefused, match="has no vote in round 2"):
        simulation.clients[8].vote(ballot.proposal)
    with pytest.raises(OpenError):
        ballot.add(vote_of(simulation, 8, ballot.proposal))

    # The newest roster's quorum is refused, and that of the roster before is enough.
    newest = simulation.certify(proposed.receipt, by=simulation.names[2:9])
    client = simulation.clients[0]
    with pytest.raises(ReceiptRefused, match="'client-7' has no vote in round 2"):
        client.follow(newest)
    with pytest.raises(ReceiptRefused, match="'client-7' has no vote in round 2"):
        simulation.enclave.follow(newest, proposed.state)
    old = simulation.certify(proposed.receipt, by=simulation.names[2:7])
    assert client.follow(old).last == proposed.receipt
    simulation.follow(proposed)

    third = outcome(simulation)
    assert simulation.enclave.ballot(third.pending).missing == 7
    with pytest.raises(ReceiptRefused, match="has 6 confirmations and needs 7"):
        simulation.clients[0].follow(simulation.certify(third.receipt, by=simulation.names[:6]))
    assert len(simulation.follow(third).certificate.votes) == 11


def test_the_revoked_confirm_up_to_the_receipt_that_announces_it(simulate):
    simulation = simulate(n=9, f=1)  # needs 6
    simulation.follow(outcome(simulation))
    before = simulation.federation
    revise(simulation, before.clients[:6], before.clients[6:])  # 6 clients, which need 4
    proposed = outcome(simulation, but=[6, 7, 8])
    ballot = simulation.enclave.ballot(proposed.pending)
    assert (ballot.electors, ballot.missing) == (before, 6)

    # Four of the six that are left would be enough under the newest roster.
    client = simulation.clients[0]
    with pytest.raises(ReceiptRefused, match="has 4 confirmations and needs 6"):
        client.follow(simulation.certify(proposed.receipt, by=simulation.names[:4]))
    with_revoked = simulation.certify(proposed.receipt, by=simulation.names[3:])
    assert client.follow(with_revoked).last == proposed.receipt
    simulation.follow(proposed)

    third = outcome(simulation, but=[6, 7, 8])
    ballot = simulation.enclave.ballot(third.pending)
    assert (ballot.electors, ballot.missing) == (simulation.federation, 4)
    with pytest.raises(ReceiptRefused, match="has no vote in round 3"):
        simulation.clients[7].vote(ballot.proposal)
    with pytest.raises(OpenError):
        ballot.add(vote_of(simulation, 7, ballot.proposal))
    with pytest.raises(ReceiptRefused, match="'client-6' has no vote in round 3"):
        simulation.clients[0].follow(simulation.certify(third.receipt, by=simulation.names[3:]))


def test_two_copies_under_two_charters_ask_the_same_voters(simulate):
    """With the newest roster of each instead, both could be confirmed, by different quorums."""
    simulation = simulate(n=7, f=1)
    served = simulation.follow(outcome(simulation))
    stays = outcome(simulation)
    simulation.restart(served.receipt)
    old = simulation.federation
    enrol(simulation, 4)
    moves = outcome(simulation)
    assert (stays.receipt.revision, moves.receipt.revision) == (1, 2)
    assert stays.receipt.number == moves.receipt.number == 2
    assert simulation.enclave.ballot(moves.pending).electors == old
    voted = simulation.clients[0].vote(stays.pending.proposal)
    with pytest.raises(RolledBack):
        voted.vote(moves.pending.proposal)


def test_a_client_that_adopts_a_charter_asks_who_asked_before(simulate):
    """The order in which it learns of a charter and of a receipt does not matter."""
    simulation = simulate(n=7, f=1)
    client = simulation.clients[0]
    served = simulation.follow(outcome(simulation))
    enrol(simulation, 4)
    second = outcome(simulation)
    by_old = simulation.certify(second.receipt, by=simulation.names[:5])
    followed = client.follow(served).adopt(simulation.federation)
    assert followed.follow(by_old).electors == simulation.federation


# Failures are outcomes.


class Secret(Exception):
    """An error whose text tells of the rows."""


RAISED = {
    "an error with a text": Secret("client-3 is at 0.123456789"),
    "an error of numpy": np.linalg.LinAlgError("0.123456789"),
    "a division by zero": ZeroDivisionError("0.123456789"),
    "our own mistake": LocalProtocolError("0.123456789"),
    "a refusal": ReceiptRefused("0.123456789"),
    "no memory": MemoryError("0.123456789"),
    "a missing key": KeyError("0.123456789"),
    "the end of an iterator": StopIteration("0.123456789"),
}


def closed(simulation, *, but=()):
    round_ = simulation.open()
    round_.send_all(but=but)
    round_.close()
    round_.measure()
    return round_


@pytest.fixture
def failing(monkeypatch):
    """A rule that raises what it is told to."""

    class Failing(Rule):
        error: BaseException | None = None

        def plan(self, gram: Gram, f: int, options: Options) -> Plan:
            if self.error is not None:
                raise self.error
            return rules.RULES["geometric-median"].plan(gram, f, options)

    rule = Failing()
    monkeypatch.setitem(rules.RULES, "failing", rule)
    return rule


@pytest.mark.parametrize("what", RAISED)
def test_a_rule_that_fails_makes_a_null_step_that_consumes_the_number(simulate, failing, what):
    simulation = simulate(defence="arc+nnm+failing")
    simulation.follow(outcome(simulation))
    model = simulation.states[1].model
    failing.error = RAISED[what]
    round_ = closed(simulation)
    proposed = round_.host().finish(round_.cohort, round_.measured)
    receipt = proposed.receipt
    name = type(failing.error).__name__
    assert receipt.failure == f"the rule failed on these updates ({name})"
    assert b"0.123456789" not in encode(receipt)
    assert (receipt.aggregate, receipt.model) == (NO_AGGREGATE, vector_digest(model))
    assert (receipt.kept, receipt.selected, receipt.participants) == (0, (), 7)
    assert proposed.state is simulation.states[1]
    assert not proposed.aggregate.any()

    # It cannot be asked again with other rows.
    failing.error = None
    with pytest.raises(LocalProtocolError, match="published once"):
        round_.host().finish(round_.cohort, round_.measured)
    served = simulation.follow(proposed)
    assert served.receipt.number == 2
    third = simulation.open()
    assert (third.offer.number, third.offer.model) == (3, vector_digest(model))
    third.send_all()
    simulation.follow(third.finish())
    assert {client.last.number for client in simulation.clients} == {3}


def test_what_stops_the_process_is_no_outcome(simulate, failing):
    simulation = simulate(defence="arc+nnm+failing")
    round_ = closed(simulation)
    failing.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        round_.host().finish(round_.cohort, round_.measured)
    failing.error = None
    assert round_.host().finish(round_.cohort, round_.measured).receipt.failure == ""


def test_too_few_rows_after_the_close_are_a_null_step(simulate, masking, defence, least):
    """The number is taken, since the enclave has seen what the rows lead to."""
    simulation = simulate(n=7, f=1, masking=masking, defence=defence, budget=0)
    round_ = simulation.open()
    honest = least(1) - 1
    changed = range(honest, 7)
    round_.send_all()
    round_.close()
    for row in changed:
        round_.spool[round_.uploads[row], 0] = b""
    round_.measure()
    proposed = round_.host().finish(round_.cohort, round_.measured)
    receipt = proposed.receipt
    few = f"{defence} needs at least {honest + 1} updates; {honest} valid updates"
    assert receipt.failure.startswith(few)
    assert f"{len(changed)} x {Rejection.CHANGED}" in receipt.failure
    assert [each.client for each in receipt.rejected] == [f"client-{row}" for row in changed]
    assert (receipt.participants, receipt.kept, receipt.aggregate) == (honest, 0, NO_AGGREGATE)
    assert simulation.follow(proposed).receipt.number == 1
    assert simulation.open().offer.number == 2


def test_too_few_uploads_are_no_outcome_and_the_round_stays_open(simulate):
    """What the host decides alone needs no number: nothing of a row is in it."""
    simulation = simulate(n=7, f=1)
    round_ = simulation.open()
    round_.send_all(but=[0, 1, 2, 3])
    with pytest.raises(TooFewUpdates):
        round_.close()
    round_.send(round_.seal(0))
    simulation.follow(round_.finish())


def test_a_null_step_that_the_host_brings_about_is_one_too(simulate, defence, least):
    """Bytes that change between the passes take a row out, and the rule may not stand then."""
    n = least(1)
    simulation = simulate(n=n, f=1, defence=defence, budget=0)
    round_ = closed(simulation)
    place = round_.uploads[0], 0
    round_.spool[place] = bytes(len(round_.spool[place]))
    proposed = round_.host().finish(round_.cohort, round_.measured)
    few = f"{defence} needs at least {n} updates; {n - 1} valid"
    assert proposed.receipt.failure.startswith(few)
    assert proposed.rejected == {"client-0": Rejection.CHANGED}
    simulation.follow(proposed)


def test_a_null_step_reads_what_any_round_reads(simulate, failing):
    """Whoever sees the disk cannot tell them apart before the outcome is released."""
    reads = []
    for error in (None, Secret()):
        failing.error = error
        round_ = closed(simulate(defence="arc+nnm+failing", budget=0))
        round_.reads.clear()
        proposed = round_.host().finish(round_.cohort, round_.measured)
        assert bool(proposed.receipt.failure) == (error is not None)
        reads.append(round_.reads)
    assert reads[0] == reads[1]
    assert len(reads[0]) == 7 * round_.terms.tiling.count


# What is shown before the release.


def path_in(pending: Pending, wanted: bytes) -> tuple[bytes, ...]:
    """The path to a leaf that is in the tree."""
    path = path_to(pending.leaves, wanted)
    assert path is not None
    return path


def copied(round_):
    """The outcome of a closed round, as a copy of the enclave would make it."""
    context = replace(round_.cohort.context, publication=Publication(1))
    cohort = replace(round_.cohort, context=context)
    return round_.host().finish(cohort, round_.measured)


def test_a_proposal_tells_nothing_of_its_outcome(simulate, failing):
    """Copies of one closed round: what differs is a salted digest, and the signature."""
    simulation = simulate(defence="arc+nnm+failing", disclose_selection=True)
    round_ = closed(simulation)
    outcomes = [copied(round_), copied(round_)]
    failing.error = Secret()
    outcomes.append(copied(round_))
    round_.cohort.standing.reject("client-4", Rejection.FALSE_NORM)
    outcomes.append(copied(round_))
    failing.error = None
    outcomes.append(copied(round_))
    receipts = [each.receipt for each in outcomes]
    assert len({(each.failure, each.kept, each.rejected) for each in receipts}) == 4
    assert len({len(encode(each)) for each in receipts}) > 1, "they differ, even in size"
    proposals = [each.pending.proposal for each in outcomes]
    assert len({len(encode(each)) for each in proposals}) == 1
    assert len({each.outcome for each in proposals}) == 5
    alike = {replace(each, outcome=bytes(32), signature=UNSIGNED) for each in proposals}
    assert len(alike) == 1


def test_the_same_receipt_under_another_salt_is_another_proposal(simulate):
    """A host that guesses an aggregate cannot test its guess."""
    pending = outcome(simulate()).pending
    assert pending.proposal.outcome == outcome_digest(pending.salt, pending.receipt)
    assert outcome_digest(bytes(32), pending.receipt) != pending.proposal.outcome
    again = outcome(simulate(seed=1)).pending
    assert again.salt != pending.salt


@pytest.mark.parametrize("disclose", [False, True])
def test_nothing_of_the_outcome_shows_before_it_is_released(simulate, masking, disclose):
    simulation = simulate(masking=masking, disclose_selection=disclose)
    round_ = simulation.open()
    round_.send(round_.forge(3, norm=1e9))
    round_.send_all(but=[3])
    proposed = round_.finish()
    pending, receipt = proposed.pending, proposed.receipt
    ballot = simulation.enclave.ballot(pending)
    paths = [path_in(pending, each) for each in pending.leaves]
    shown = b"".join(
        (
            encode(ballot.proposal),
            repr(proposed).encode(),
            repr(pending).encode(),
            *(part for path in paths for part in path),
        )
    )
    hidden = {
        "the aggregate": proposed.aggregate.tobytes(),
        "its digest": vector_digest(np.array(proposed.aggregate)),
        "the model's digest": receipt.model,
        "the commitment": receipt.commitment,
        "the salt": pending.salt,
        "the receipt's signature": receipt.signature,
        "the receipt's digest": digest(receipt),
    }
    for what, value in hidden.items():
        for at in range(0, len(value) - 7, 4):
            part = value[at : at + 8]
            for form in (part, repr(part)[2:-1].encode(), part.hex().encode()):
                assert form not in shown, what
    for name in simulation.names:
        assert name.encode() not in shown
    assert str(Rejection.FALSE_NORM).encode() not in shown


# The tree of the cohort.


def test_every_client_finds_its_header_in_the_proposal_and_an_absent_one_does_not(simulate):
    simulation = simulate()
    round_ = simulation.open()
    waiting = {
        row: simulation.join(simulation.clients[row], round_.offer).seal(simulation.rows[row])
        for row in range(7)
    }
    for row in (6, 2, 0, 1, 5, 3):  # Whatever the order of arrival, the roster's is the tree's.
        round_.send(waiting[row].sealed)
        round_.note(waiting[row].sealed.header, 0.0)
    round_.close()
    round_.measure()
    pending = round_.host().finish(round_.cohort, round_.measured).pending
    leaves = [waiting[row].leaf for row in (0, 1, 2, 3, 5, 6)]
    assert pending.leaves == tuple(leaves)
    root = pending.proposal.cohort
    assert root == pending.receipt.cohort == merkle.root(leaves)
    for row in (0, 1, 2, 3, 5, 6):
        assert waiting[row].leaf == leaf(waiting[row].sealed.header)
        assert is_under(root, waiting[row].leaf, path_in(pending, waiting[row].leaf))
    assert path_to(pending.leaves, waiting[4].leaf) is None


def test_a_rejected_row_stays_in_the_tree(simulate):
    """Else the root would tell, before the release, who was rejected."""
    simulation = simulate(budget=0)
    round_ = simulation.open()
    sealed = round_.seal(3)
    round_.send(sealed)
    round_.send_all(but=[3])
    round_.close()
    round_.spool[round_.uploads[3], 0] = b""
    round_.measure()
    proposed = round_.average()
    assert proposed.rejected == {"client-3": Rejection.CHANGED}
    assert leaf(sealed.header) in proposed.pending.leaves
    assert len(proposed.pending.leaves) == 7


# Who is asked.


UNCONFIRMED = "nobody confirms outcomes"


def test_where_nobody_confirms_no_certificate_is_needed_and_every_receipt_says_so(simulate):
    simulation = simulate(confirm="none")
    for _ in range(2):
        proposed = outcome(simulation)
        served = simulation.follow(proposed)
        assert served.certificate is None
        assert any(UNCONFIRMED in each for each in served.receipt.cautions)
    confirmed = simulate()
    receipt = confirmed.follow(outcome(confirmed)).receipt
    assert not any(UNCONFIRMED in each for each in receipt.cautions)


def test_a_receipt_is_marked_if_nobody_confirms_it_or_the_next_one(simulate):
    """Who confirms is said by the receipt before, so a change of terms takes effect later."""
    simulation = simulate()
    marks, certificates = [], []
    for who in ("clients", "none", "none", "clients", "clients"):
        old = simulation.federation
        simulation.federation = replace(
            old, revision=old.revision + 1, terms=replace(old.terms, confirm=who)
        )
        charter = simulation.authority.sign(Charter(simulation.federation, UNSIGNED))
        simulation.enclave.adopt(charter)
        simulation.clients = [each.adopt(simulation.federation) for each in simulation.clients]
        served = simulation.follow(outcome(simulation))
        marks.append(any(UNCONFIRMED in each for each in served.receipt.cautions))
        certificates.append(served.certificate is not None)
    assert marks == [False, True, True, True, False]
    assert certificates == [True, True, False, False, True]


def test_witnesses_confirm_instead_of_clients(simulate):
    simulation = simulate(witnesses=4, confirm="witnesses", witness_f=1)  # needs 3
    for number in (1, 2):
        proposed = outcome(simulation)
        ballot = simulation.ballot(proposed, but=["witness-1"])
        assert (ballot.confirmed, ballot.awaited) == (True, {"witness-1"})
        served = simulation.follow(proposed)
        assert [vote.voter for vote in served.certificate.votes] == [
            f"witness-{i}" for i in range(4)
        ]
        assert served.receipt.number == number
    assert all(client.voted is None for client in simulation.clients)


def test_both_have_to_confirm_where_the_terms_say_so(simulate):
    simulation = simulate(n=7, f=1, witnesses=3, confirm="both", witness_f=1)  # 5 and 3
    proposed = outcome(simulation)
    ballot = simulation.ballot(proposed, but=["client-0", "client-1", "witness-0"])
    assert (ballot.confirmed, ballot.missing) == (False, 1)
    with pytest.raises(ReceiptRefused, match="1 confirmations are missing"):
        ballot.certificate(proposed.pending.salt)
    with pytest.raises(ReceiptRefused, match="has 0 confirmations and needs 3"):
        simulation.clients[0].follow(simulation.certify(proposed.receipt))
    served = simulation.follow(proposed)
    assert len(served.certificate.votes) == 10


def test_a_witness_has_one_vote_as_a_client_has(simulate):
    simulation = simulate(witnesses=1, confirm="witnesses")
    first, second = (each.pending.proposal for each in copies(simulation))
    voted = simulation.witnesses[0].vote(first)
    with pytest.raises(RolledBack) as caught:
        voted.vote(second)
    assert caught.value.proof == first


def test_a_client_that_was_shown_a_newer_charter_by_a_copy_follows_the_true_chain(simulate):
    """A copy adopts it and opens the round; the true enclave has an outcome pending without it."""
    simulation = simulate(n=7, f=1)
    pending = outcome(simulation)
    newer = replace(simulation.federation, revision=2)
    client = simulation.clients[0].adopt(newer)
    certified = simulation.confirm(pending, but=[0])
    followed = client.follow(certified)
    assert (followed.last, followed.electors) == (certified.receipt, simulation.federation)
    assert followed.federation == newer


def test_a_null_step_does_what_any_other_outcome_does(simulate, monkeypatch):
    """Else the time before it is held would tell."""
    done: list[str] = []
    for owner, name in ((optimiser, "advance"), (merkle, "leaf"), (loops, "add_rows")):
        real = getattr(owner, name)

        def counted(*given, real=real, name=name, **named):
            done.append(name)
            return real(*given, **named)

        monkeypatch.setattr(owner, name, counted)
    counts = []
    for spoil in (False, True):
        done.clear()
        simulation = simulate(n=7, f=1)
        round_ = simulation.open()
        round_.send_all()
        round_.close()
        round_.measure()
        if spoil:
            monkeypatch.setattr(host, "decide", cannot_stand)
        outcome = round_.host().finish(round_.cohort, round_.measured)
        assert bool(outcome.receipt.failure) == spoil
        counts.append(sorted(done))
    assert counts[0] == counts[1]
    assert {"advance", "leaf", "add_rows"} == set(counts[0])


def cannot_stand(cohort, measured):
    raise RoundFailed("why")


# When the enclave's state is lost.


def lost(simulation, rounds=1):
    """After some rounds, the state of the enclave is gone."""
    for _ in range(rounds):
        simulation.follow(outcome(simulation))
    return simulation


def test_clients_go_on_after_a_number_that_is_proved_to_be_abandoned(simulate):
    simulation = lost(simulate(n=7, f=1))
    abandon = simulation.abandon(simulation.votes(range(7)))
    simulation.clients = [each.abandon(abandon) for each in simulation.clients]
    assert {each.last for each in simulation.clients} == {abandon}
    assert {each.next_number for each in simulation.clients} == {3}

    # A new enclave, with another key, goes on from the model that the number began with.
    simulation.enclave = Enclave(
        simulation.federation,
        Identity.generate(simulation.entropy),
        head=abandon,
        state=simulation.states[1],
        entropy=simulation.entropy,
    )
    round_ = simulation.open()
    assert (round_.offer.number, round_.offer.previous) == (3, digest(abandon))
    assert round_.offer.model == vector_digest(simulation.states[1].model)
    simulation.clients = [
        replace(each, receipt_key=simulation.enclave.receipt_key) for each in simulation.clients
    ]
    round_.send_all()
    served = simulation.follow(round_.finish())
    assert (served.receipt.number, served.receipt.previous) == (3, digest(abandon))


def test_a_copy_of_the_enclave_cannot_release_a_number_that_is_proved_to_be_abandoned(simulate):
    simulation = lost(simulate(n=7, f=1))
    hidden = outcome(simulation)  # of an enclave that the host has not lost at all
    abandon = simulation.abandon(simulation.votes(range(5)))
    ballot = simulation.enclave.ballot(hidden.pending)
    for row in range(7):
        client = simulation.clients[row]
        if row < 5:
            with pytest.raises(ReceiptRefused, match="no vote left for round 2"):
                client.vote(ballot.proposal)
            with pytest.raises(ReceiptRefused, match="confirms no outcome of 2"):
                simulation.join(client, simulation.open().offer)
        else:
            ballot.add(client.vote(ballot.proposal).confirmation())
    assert not ballot.confirmed
    assert simulation.clients[0].abandon(abandon).last == abandon


def test_what_was_confirmed_is_shown_and_not_taken_back(simulate):
    """Asked to vote for none, a client shows the proposal that it has confirmed."""
    simulation = lost(simulate(n=7, f=1))
    proposal = proposal_of(simulation)
    simulation.clients[:5] = [each.vote(proposal) for each in simulation.clients[:5]]
    votes = simulation.votes(range(7))
    assert [vote.proposal for vote in votes] == [digest(proposal)] * 5 + [NO_PROPOSAL] * 2
    abandon = simulation.abandon(votes)
    for client in simulation.clients:
        with pytest.raises(ReceiptRefused, match="nothing proves that no outcome"):
            client.abandon(abandon)


@pytest.mark.parametrize(("confirmed", "proved"), [(0, True), (1, True), (3, True), (4, False)])
def test_votes_for_a_proposal_prove_its_end_while_they_are_no_quorum(simulate, confirmed, proved):
    """Of nine, with f = 1, six are a quorum. Two are silent, and one liar may have voted twice."""
    simulation = lost(simulate(n=9, f=1))
    proposal = proposal_of(simulation)
    for row in range(confirmed):
        simulation.clients[row] = simulation.clients[row].vote(proposal)
    abandon = simulation.abandon(simulation.votes(range(8 if confirmed == 3 else 7)))
    client = simulation.clients[8]
    if proved:
        assert client.abandon(abandon).last == abandon
    else:
        with pytest.raises(ReceiptRefused, match="nothing proves"):
            client.abandon(abandon)


def test_without_proof_a_client_goes_on_by_its_owner_s_word_alone(simulate):
    simulation = lost(simulate(n=7, f=1))
    for count in (0, 3):
        abandon = simulation.abandon(simulation.votes(range(count)))
        client = simulation.clients[6]
        with pytest.raises(ReceiptRefused, match="only by its owner's word"):
            client.abandon(abandon)
        assert client.abandon(abandon, by_owners_word=True).last == abandon
    nobody = lost(simulate(confirm="none"))
    abandon = nobody.abandon(nobody.votes(range(7)))
    with pytest.raises(ReceiptRefused, match="only by its owner's word"):
        nobody.clients[0].abandon(abandon)


@pytest.mark.parametrize("by_owners_word", [False, True])
def test_a_client_that_holds_the_receipt_does_not_go_back_for_an_abandon(simulate, by_owners_word):
    """Its number was released, whatever the votes show."""
    simulation = lost(simulate(n=7, f=1))
    proposed = outcome(simulation)
    abandon = simulation.abandon(simulation.votes(range(7)))
    holder = simulation.client(0)
    for number in (1, 2):
        receipt = simulation.enclave._head if number == 1 else proposed.receipt
        holder = holder.follow(simulation.certify(receipt))
    with pytest.raises(ReceiptRefused, match="holds the receipt of round 2"):
        holder.abandon(abandon, by_owners_word=by_owners_word)
    assert simulation.clients[0].abandon(abandon).last == abandon


FALSE = {
    "that nobody signed": (lambda s, a: replace(a, signature=UNSIGNED), OpenError, "open"),
    "that a stranger signed": (lambda s, a: s.stranger.sign(a), OpenError, "open"),
    "that the enclave signed": (lambda s, a: s.sign(a), OpenError, "open"),
    "of another federation": (
        lambda s, a: s.authority.sign(replace(a, electors=replace(a.electors, id=bytes(32)))),
        ReceiptRefused,
        "another federation",
    ),
    "with another charter": (
        lambda s, a: s.authority.sign(replace(a, electors=replace(a.electors, revision=2))),
        ReceiptRefused,
        "no new charter",
    ),
    "after another chain": (
        lambda s, a: s.authority.sign(replace(a, previous=bytes(32))),
        ReceiptRefused,
        "does not continue the chain",
    ),
    "of a number that is not open": (
        lambda s, a: s.authority.sign(replace(a, number=3)),
        ReceiptRefused,
        "missing",
    ),
    "that goes on from another model": (
        lambda s, a: s.authority.sign(replace(a, model=bytes(32))),
        ReceiptRefused,
        "starts from the model before it",
    ),
    "with fewer votes": (
        lambda s, a: s.authority.sign(replace(a, votes=a.votes[:3])),
        ReceiptRefused,
        "nothing proves",
    ),
}


@pytest.mark.parametrize("what", FALSE)
def test_an_abandon_is_refused(simulate, what):
    change, error, why = FALSE[what]
    simulation = lost(simulate(n=7, f=1))
    abandon = simulation.abandon(simulation.votes(range(7)))
    client: Client = simulation.clients[0]
    with pytest.raises(error, match=why):
        client.abandon(change(simulation, abandon))
    assert client.abandon(abandon).last == abandon


def test_who_has_voted_for_none_still_follows_what_others_released(simulate):
    simulation = lost(simulate(n=7, f=1))
    simulation.clients[:2] = [each.vote_for_none(2) for each in simulation.clients[:2]]
    proposed = outcome(simulation, but=[0, 1])
    for client in simulation.clients[:2]:
        with pytest.raises(ReceiptRefused, match="no vote left"):
            client.vote(proposed.pending.proposal)
    served = simulation.confirm(proposed, but=["client-0", "client-1"])
    assert all(each.follow(served).next_number == 3 for each in simulation.clients)


def test_none_is_voted_for_the_open_number_alone(simulate):
    simulation = lost(simulate(), rounds=2)
    client = simulation.clients[0]
    for number in (1, 2, 4):
        with pytest.raises(ReceiptRefused, match="which is round 3"):
            client.vote_for_none(number)
    voted = client.vote_for_none(3)
    assert voted.vote_for_none(3) == voted
    assert voted.confirmation().proposal == NO_PROPOSAL
