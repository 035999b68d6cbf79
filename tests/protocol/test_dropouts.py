"""Drop-outs and newcomers cost nothing: every pattern of a small federation."""

import random
from dataclasses import replace

import pytest

from ostraka.errors import ReceiptRefused, Rejection, TooFewUpdates

N, F, D = 7, 1, 40
ROWS = 79  # a seed: of these rows any part is clearly apart
SAMPLED = frozenset(random.Random(7).sample(range(2**N), 48))
PATTERNS = [
    pattern if pattern in SAMPLED else pytest.param(pattern, marks=pytest.mark.soak)
    for pattern in range(2**N)
]


def send_part(round_, row, tiles):
    """A client that sends its header and some tiles, and then no more."""
    sealed = round_.seal(row)
    round_.accept(sealed.header)
    for tile in sealed.tiles[:tiles]:
        round_.accept_tile(tile)
    return sealed


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_of_drop_outs(simulate, masking, pattern):
    """Bit i of the pattern: whether client i is there. Those who are not stop at various points."""
    play(simulate, pattern, needed=2 * F + 2, masking=masking)


@pytest.mark.parametrize("pattern", sorted(SAMPLED)[::4])
def test_drop_outs_of_any_defence(simulate, defence, least, pattern):
    play(simulate, pattern, needed=least(F), defence=defence)


def play(simulate, pattern, *, needed, **terms):
    rows = simulate.updates(N, D, seed=ROWS)
    round_ = simulate(rows=rows, f=F, tile=16, seed=pattern, **terms).open()
    there = [row for row in range(N) if pattern >> row & 1]
    gone = [row for row in range(N) if row not in there]
    rejected = {}
    for row in gone:
        match (pattern + row) % 3:
            case 1:
                send_part(round_, row, tiles=0)
                rejected[row] = Rejection.INCOMPLETE
            case 2:
                send_part(round_, row, tiles=2)
                rejected[row] = Rejection.INCOMPLETE
    for row in there:
        round_.send(round_.seal(row))

    # While there are too few, the round stays open and takes in whoever comes.
    while len(there) < needed:
        with pytest.raises(TooFewUpdates, match=f"{len(there)} valid updates and f={F}"):
            round_.close()
        late = gone.pop()
        rejected.pop(late, None)
        round_.send(round_.seal(late))
        there.append(late)
    round_.assert_result(round_.finish(), rejected, absent=gone)


def test_an_incomplete_upload_can_be_resumed_after_a_refused_close(simulate, masking):
    round_ = simulate(n=4, masking=masking).open()
    round_.send_all(but=[3])
    sealed = send_part(round_, 3, tiles=3)
    with pytest.raises(TooFewUpdates):
        round_.close()
    round_.accept_tile(sealed.tiles[3])
    round_.assert_result(round_.finish(), {})


def test_a_newcomer_takes_part_in_the_next_round(simulate, masking):
    simulation = simulate(masking=masking)
    first = simulation.open()
    first.send_all(but=[6])
    published = first.finish()
    first.assert_result(published, {}, absent=[6])
    served = simulation.follow(published)

    # One client that was away holds the receipt. Another knows of no round before: it begins
    # with the newest receipt, and what others confirmed stands for all receipts before that.
    newcomer = simulation.client(5)
    second = simulation.open()
    with pytest.raises(ReceiptRefused, match="missing"):
        simulation.join(newcomer, second.offer)
    simulation.clients[5] = replace(newcomer, last=served.receipt)
    second.send_all(but=[0])
    published = second.finish()
    second.assert_result(published, {}, absent=[0])
    assert simulation.follow(published).receipt.number == 2


def test_who_was_rejected_is_listed_in_the_roster_s_order(simulate, masking):
    """So that the same round has the same receipt, whatever order sets and messages have."""
    round_ = simulate(n=11, f=1, masking=masking).open()
    gone = [9, 2, 7, 4, 0]
    for row in gone:
        send_part(round_, row, tiles=1)
    round_.send_all(but=gone)
    receipt = round_.finish().receipt
    assert [each.client for each in receipt.rejected] == [f"client-{row}" for row in sorted(gone)]


def test_noise_is_right_for_whoever_turns_up(simulate):
    rows = simulate.updates(9, 60, seed=5)
    for there in ([0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [0, 2, 4, 6, 8]):
        round_ = simulate(rows=rows, f=1, masking="gaussian").open()
        for row in there:
            round_.send(round_.seal(row))
        round_.assert_result(round_.finish(), {}, absent=set(range(9)) - set(there))
