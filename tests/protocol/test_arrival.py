"""Rows as they arrive: what is taken, by whom it is decided, and what is left of what is not."""

import contextlib
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ostraka.core import loops
from ostraka.crypto import updates as opening
from ostraka.crypto.stream import SecretStream
from ostraka.errors import OpenError, Rejection, UpdateRejected
from ostraka.protocol.enclave import Threads
from ostraka.protocol.enclave.folding import Folds

D, TILE, SKETCH, N = 5_000, 512, 4096, 7
TERMS = {"tile": TILE, "sketch": SKETCH, "defence": "multi-krum"}


def updates(seed=0):
    return np.random.default_rng(seed).normal(size=(N, D)).astype(np.float32)


def spoilt(round_, row, how):
    """The upload of a client that spoils it."""
    update = round_.simulation.rows[row].copy()
    norm = float(np.linalg.norm(update.astype(np.float64)))
    if how == "a NaN":
        update[3_000] = np.nan
    elif how == "too long":
        update[2_500:2_600] *= 40
    elif how == "too short":
        norm *= 1.01
    return round_.forge(row, update, norm=norm)


def answers(round_, upload):
    """What the sender of these tiles hears, tile by tile."""
    heard = []
    round_.accept(upload.header)
    for tile in upload.tiles:
        try:
            round_.accept_tile(tile, client=upload.header.client)
            heard.append("taken")
        except (UpdateRejected, OpenError) as refused:
            heard.append(str(refused))
    return heard


def test_what_has_arrived_is_counted_tile_by_tile(simulate):
    round_ = simulate(rows=updates(), tile=TILE).open()
    arrived = 0
    for row in (0, 1):
        upload = round_.seal(row)
        round_.accept(upload.header)
        for tile in upload.tiles:
            round_.accept_tile(tile)
            arrived += len(tile.ciphertext)
            assert round_.intake.bytes_in == arrived


def folding_with(monkeypatch, key):
    """Every round that opens draws these signs and shifts."""
    real = Folds.__init__

    def draw(self, tiling, m, _):
        real(self, tiling, m, SecretStream(key * 32).bytes)

    monkeypatch.setattr(Folds, "__init__", draw)


@pytest.mark.parametrize("budget", [0, 2**62])
@pytest.mark.parametrize("how", ["honest", "a NaN", "too long", "too short"])
def test_what_is_accepted_does_not_depend_on_the_sketch(simulate, monkeypatch, budget, how):
    """Its secrets are older than the rows: were they to show in an answer, a client could try rows
    until it has found one that hides in the fold."""
    heard = []
    for key in (b"a", b"b", b"c"):
        with monkeypatch.context() as patched:
            folding_with(patched, key)
            round_ = simulate(rows=updates(), budget=budget, **TERMS).open()
            heard.append(answers(round_, spoilt(round_, 2, how)))
    assert heard[0] == heard[1] == heard[2]
    assert (set(heard[0]) == {"taken"}) == (how == "honest")


def test_no_norm_tells_which_values_meet_in_the_sketch(simulate, monkeypatch):
    """Squares of 1.0 and 2^-12.5 make another sum in float32 if they are added to each other first.

    An attacker states a norm between the two sums, and would know by the answer.
    """
    d = 8 * SKETCH
    row = np.zeros(d, np.float32)
    row[:128], row[3 * SKETCH + 40] = 1.0, 2.0**-12.5
    norm = math.sqrt(128 + 2.0**-26) / (1 + 2.0**-10)
    heard = set()
    for key in range(24):
        with monkeypatch.context() as patched:
            folding_with(patched, bytes([key]))
            rows = np.ones((N, d), np.float32)
            round_ = simulate(rows=rows, **TERMS | {"tile": d}).open()
            heard.add(tuple(answers(round_, round_.forge(2, row, norm=norm))))
    assert len(heard) == 1


def test_what_is_accepted_does_not_depend_on_other_rows(simulate):
    alone = simulate(rows=updates(), **TERMS).open()
    among = simulate(rows=updates(), **TERMS).open()
    among.send_all(but=[2])
    for how in ("a NaN", "too long", "too short"):
        assert answers(alone, spoilt(alone, 2, how)) == answers(among, spoilt(among, 2, how))


@pytest.mark.parametrize("least", [2.0**-149, 2.0**-100, 2.0**-76])
@pytest.mark.parametrize("sketch", [None, SKETCH])
def test_a_row_whose_squares_are_below_float32_does_not_pass_for_zeros(simulate, sketch, least):
    """Among rows that are shorter still, it would escape the clipping."""
    tiny = np.ldexp(updates(), -140).astype(np.float32)
    round_ = simulate(rows=tiny, **TERMS | {"sketch": sketch}).open()
    round_.send(round_.forge(2, np.full(D, least, np.float32), norm=0.0))
    assert round_.intake.spoilt == {"client-2": Rejection.FALSE_NORM}
    round_.send(round_.forge(3, np.zeros(D, np.float32), norm=0.0))
    assert round_.intake.complete == {"client-3"}


@pytest.mark.parametrize("budget", [0, 2**62])
def test_a_tile_is_folded_once_and_only_if_it_is_authentic(simulate, monkeypatch, budget):
    round_ = simulate(rows=updates(), budget=budget, **TERMS).open()
    folded, absorb, absorb_part = [], loops.absorb, loops.absorb_part

    def noted(values, *others):
        folded.append(values.copy())
        return absorb(values, *others)

    def noted_part(row, start, fold, sketch):
        folded.append(row.values[start : start + fold.width].copy())
        return absorb_part(row, start, fold, sketch)

    monkeypatch.setattr(loops, "absorb", noted)
    monkeypatch.setattr(loops, "absorb_part", noted_part)
    sealed = round_.seal(0)
    round_.accept(sealed.header)
    for tile in sealed.tiles:
        forged = type(tile)(tile.upload_id, tile.index, bytes(len(tile.ciphertext)))
        with pytest.raises(OpenError):
            round_.accept_tile(forged)
        round_.accept_tile(tile)
        with pytest.raises(UpdateRejected, match="sent twice"):
            round_.accept_tile(tile)
    np.testing.assert_array_equal(np.concatenate(folded), round_.simulation.rows[0])


def test_a_tile_that_was_folded_and_failed_then_is_not_folded_again(simulate, monkeypatch):
    """Memory may run out behind the fold. A row folded otherwise than it is could hide."""
    round_ = simulate(rows=updates(), **TERMS).open()
    real = loops.absorb_part

    def absorb_and_fail(*arguments):
        real(*arguments)
        raise MemoryError

    sealed = round_.seal(0)
    round_.accept(sealed.header)
    with monkeypatch.context() as patched:
        patched.setattr(loops, "absorb_part", absorb_and_fail)
        with pytest.raises(MemoryError):
            round_.accept_tile(sealed.tiles[0])
    with pytest.raises(UpdateRejected):
        round_.accept_tile(sealed.tiles[0])
    assert round_.intake.spoilt == {}  # It is nobody's fault, and another upload is welcome.
    round_.send(round_.seal(0))
    assert round_.intake.complete == {"client-0"}


@pytest.mark.parametrize("budget", [0, 2**62])
def test_an_upload_that_is_replaced_leaves_nothing_in_the_one_after_it(
    simulate, monkeypatch, budget
):
    """Neither in its norm, nor in its sketch, nor in its values."""
    folding_with(monkeypatch, b"k")
    plain = simulate(rows=updates(), budget=budget, **TERMS).open()
    plain.send_all()
    plain.close()
    round_ = simulate(rows=updates(), budget=budget, **TERMS).open()
    for row in range(N):
        half = round_.seal(row, 50 * updates(seed=9)[row])
        round_.accept(half.header)
        for tile in half.tiles[:6]:
            round_.accept_tile(tile)
    round_.send_all()
    round_.close()
    out = np.empty(TILE, np.float32)
    for row, (member, other) in enumerate(zip(round_.cohort.rows, plain.cohort.rows, strict=True)):
        np.testing.assert_array_equal(member.sketch, other.sketch)
        for index in range(round_.terms.tiling.count):
            expected = round_.simulation.rows[row][round_.terms.tiling.part(index)]
            np.testing.assert_array_equal(member.values.read(index, out), expected)


def test_an_upload_that_is_completed_while_another_header_is_opened_is_not_replaced(
    simulate, monkeypatch
):
    """Its client was told that it is complete. And its place would be lost to the round."""
    round_ = simulate(rows=updates(), **TERMS).open()
    first, second = round_.seal(1), round_.seal(1)
    round_.accept(first.header)
    for tile in first.tiles[:-1]:
        round_.accept_tile(tile)
    real = opening.open_header

    def open_slowly(*arguments):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(round_.intake.take, "client-1", first.tiles[-1]).result()
        return real(*arguments)

    monkeypatch.setattr(opening, "open_header", open_slowly)
    with pytest.raises(UpdateRejected, match="sent twice"):
        round_.accept(second.header)
    assert round_.intake.complete == {"client-1"}
    assert round_.intake.spoilt == {}
    assert round_.intake.next_tile("client-1", first.header.upload_id) == len(first.tiles)


def test_places_of_uploads_that_are_given_up_are_used_again(simulate):
    """With memory for one row, every client has it once."""
    round_ = simulate(rows=updates(), budget=4 * D, **TERMS).open()
    for row in range(3):
        round_.send(spoilt(round_, row, "a NaN"))
    round_.send_all(but=range(3))
    assert round_.intake.spooled == {f"client-{row}" for row in range(4, N)}


def test_many_threads_bring_one_upload(simulate):
    """Each tile is taken once, whoever brings it, and they are taken in order."""
    round_ = simulate(rows=updates(), **TERMS).open()
    sealed = round_.seal(1)
    round_.accept(sealed.header)
    together = threading.Barrier(4)

    def bring(_: int) -> int:
        together.wait()
        taken = 0
        for _ in range(50):
            for tile in sealed.tiles:
                with contextlib.suppress(UpdateRejected, OpenError):
                    round_.intake.take("client-1", tile)
                    taken += 1
        return taken

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(bring, range(4))) == len(sealed.tiles)
    round_.send_all(but=[1])
    round_.close()
    out = np.empty(TILE, np.float32)
    read = [round_.cohort.rows[1].values.read(index, out) for index in range(len(sealed.tiles))]
    np.testing.assert_array_equal(np.concatenate(read), round_.simulation.rows[1])


def test_after_a_round_has_stopped_nothing_writes_into_its_memory(simulate):
    round_ = simulate(rows=updates(), **TERMS).open()
    sealed = round_.seal(1)
    round_.accept(sealed.header)
    round_.accept_tile(sealed.tiles[0])
    round_.intake.stop()
    with pytest.raises(UpdateRejected, match="after the round closed"):
        round_.accept_tile(sealed.tiles[1])
    with pytest.raises(UpdateRejected, match="after the round closed"):
        round_.accept(round_.seal(2).header)


@pytest.mark.parametrize("masking", ["none", "exact", "gaussian"])
@pytest.mark.parametrize("sketch", [None, SKETCH])
@pytest.mark.parametrize("defence", ["multi-krum", "trimmed-mean"])
@pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")
def test_resident_or_spooled_on_any_threads_the_result_is_the_same_to_the_bit(
    simulate, monkeypatch, masking, sketch, defence
):
    folding_with(monkeypatch, b"k")
    rows = simulate.updates(N, D, 3)
    terms = {"tile": TILE, "sketch": sketch, "masking": masking, "defence": defence}
    found = set()
    for budget, threads in ((0, 1), (3 * 4 * D, 2), (2**62, 1), (2**62, 2)):
        with ThreadPoolExecutor(threads) as pool:
            simulation = simulate(rows=rows, f=1, budget=budget, **terms)
            simulation.threads = Threads(threads, pool.map)
            round_ = simulation.open()
            round_.send_all()
            published = round_.finish()
        found.add((published.aggregate.tobytes(), published.selected))
    assert len(found) == 1
