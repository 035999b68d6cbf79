"""Rounds whose updates come in shorter formats, and clients that break those."""

import math

import numpy as np
import pytest

from ostraka import run_round
from ostraka.core import exact, field, loops
from ostraka.core.loops import twin
from ostraka.core.uploads import FORMATS, INT8
from ostraka.crypto.stream import SecretStream
from ostraka.errors import ConfigError, Rejection, UpdateRejected, WorkerLied
from ostraka.protocol.enclave import masking as masking_step
from ostraka.protocol.enclave import measure as measure_step
from ostraka.protocol.enclave.encoders import ExactEncoder

ME = 2
SHORT = ["bfloat16", "float16", "int8"]
STEPS = np.array([2.0**-9, 3 * 2.0**-10, 2.0**-8, 2.0**-11, 5 * 2.0**-11, 2.0**-9, 7 * 2.0**-12])


def integers(n=7, d=50, seed=0):
    """(n, d) about a few directions, each row with a value of 127, so that its step is known."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 5)) @ rng.normal(size=(5, d)) + 0.3 * rng.normal(size=(n, d))
    q = np.rint(100 * rows / abs(rows).max(axis=1)[:, None]).astype(np.int8)
    q[:, 7] = 127
    return q


def exactly(name, rows):
    """Rows (n, d) that a format holds as they are."""
    stream = SecretStream(bytes(32))
    return np.array([FORMATS[name].encode(row, stream.fill).widened() for row in rows])


def representable(name, n=7, d=50):
    if name == "int8":
        return (STEPS[:n, None] * integers(n, d)).astype(np.float32)
    return exactly(name, (STEPS[:n, None] * integers(n, d) * 1.1).astype(np.float32))


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_round_is_that_of_the_values_that_were_sent(simulate, masking, name, threads):
    simulation = simulate(
        masking=masking,
        upload=name,
        rows=representable(name),
        threads=threads,
        defence="multi-krum",
    )
    round_ = simulation.open()
    round_.send_all()
    round_.assert_result(round_.finish(), {})


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize(
    "how",
    [{"distances": "inside"}, {}, {"workers": 3}, {"rule": "median", "disclose_values": True}],
)
def test_formats_change_nothing_where_values_are_the_same(name, how):
    """float32 and the shorter format give the same aggregate, to the bit."""
    rows = representable(name, d=300)
    how = {"rule": "multi-krum", **how}
    long, short = run_round(rows, f=1, **how), run_round(rows, f=1, upload=name, **how)
    assert short.selected == long.selected
    np.testing.assert_array_equal(short.aggregate, long.aggregate)
    assert not short.rejected


@pytest.mark.parametrize("name", SHORT)
def test_a_single_value_an_update(name):
    rows = np.array([[1], [2], [3], [-4], [0]], np.float32)
    result = run_round(rows, f=1, upload=name, rule="mean")
    # With int8, a value is the largest of its row, and may be rounded to one step less than 127.
    steps = float(np.abs(rows).sum()) / 126 / len(rows) if name == "int8" else 0.0
    assert result.aggregate[0] == pytest.approx(0.4, abs=1e-3 + steps)
    assert not result.rejected


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.filterwarnings("ignore::ostraka.errors.ToleranceUsedUp")
def test_an_update_that_is_not_finite_is_rejected_as_ever(name):
    rows = representable(name)
    for bad in (np.nan, np.inf):
        rows[ME, 3] = bad
        assert run_round(rows, f=1, upload=name).rejected == {ME: Rejection.BAD_NORM}


def test_rows_of_int8_are_folded_as_any_others():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=20_000) + 0.2 * rng.normal(size=(7, 20_000))).astype(np.float32)
    rows[ME] *= -1
    for name in SHORT:
        kept = run_round(rows, f=1, upload=name, sketch=16_384, rule="multi-krum")
        assert ME not in kept.selected
        assert len(kept.selected) == 6


def test_float16_refuses_what_would_be_an_infinity():
    rows = representable("float16")
    rows[ME, 0] = 1e6
    with pytest.raises(ConfigError, match=r"value of 1e.06, and float16 ends at 65504"):
        run_round(rows, f=1, upload="float16")
    assert not run_round(rows, f=1, upload="bfloat16").rejected


# Law 19: integers are masked as they are.


class Recording(ExactEncoder):
    """Keeps the inner products that are decoded from the workers, and what it decides."""

    last: "Recording"

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        Recording.last = self

    def decode(self, matrices):
        check = self._scratch[0].check
        accepts = check.accepts

        def record(residues):
            self.gram = field.signed(residues)
            return accepts(residues)

        check.accepts = record  # type: ignore[method-assign]
        self.result = super().decode(matrices)
        return self.result


@pytest.mark.parametrize("workers", [2, 3, 4, 7])
@pytest.mark.parametrize("threads", [1, 2])
def test_law19_inner_products_are_those_of_the_integers(monkeypatch, workers, threads):
    monkeypatch.setattr(masking_step, "ExactEncoder", Recording)
    q = integers(d=3000)
    rows = (STEPS[:, None] * q).astype(np.float32)
    result = run_round(rows, f=1, upload="int8", workers=workers, threads=threads)
    wide = q.astype(np.int64)
    np.testing.assert_array_equal(Recording.last.gram, wide @ wide.T)
    np.testing.assert_array_equal(Recording.last._s, np.square(wide).sum(axis=1))
    assert not Recording.last._v.any()
    assert all(scratch._dither is None for scratch in Recording.last._scratch)
    assert not result.rejected
    # Nothing was rounded but float64: distances are exact.
    assert 0 < result.distance_error < 1e-10


LONG = 3001


def measured_round(simulate, q, **terms):
    """A round of rows of integers, after its first pass. Pieces are short, and the last shorter."""
    rows = (STEPS[: len(q), None] * q).astype(np.float32)
    round_ = simulate(rows=rows, upload="int8", tile=256, defence="multi-krum", **terms).open()
    round_.send_all()
    round_.close()
    round_.measure()
    return round_


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kept", [0, 3, 7])
@pytest.mark.parametrize("how", ["native", "numpy"])
def test_law19_inside_they_are_counted_and_exact(simulate, monkeypatch, threads, kept, how):
    """To the bit what workers give, and so wherever rows are, whichever loops run."""
    monkeypatch.setattr(exact, "_GROUP_ROWS", 2)  # as many as are read at a time of long pieces
    if how == "numpy":
        monkeypatch.setattr(loops, "_loops", twin)
    q = integers(d=LONG)
    round_ = measured_round(simulate, q, threads=threads, budget=kept * LONG)
    assert [row.values.resident for row in round_.cohort.rows] == [True] * kept + [False] * (
        7 - kept
    )
    found, wide = round_.measured, q.astype(np.int64)
    steps = STEPS * round_.cohort.factors
    np.testing.assert_array_equal(found.gram.products, np.outer(steps, steps) * (wide @ wide.T))
    assert found.gram.deviation == 2.0**-48
    assert found.by == "inside"
    by_workers = measured_round(simulate, q, masking="exact").measured
    np.testing.assert_array_equal(found.gram.products, by_workers.gram.products)
    round_.assert_result(round_.average(), {})


@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_law19_inside_any_number_of_rows_and_threads(simulate, n):
    q = integers(n, d=LONG)
    found = [
        measured_round(simulate, q, f=0, threads=threads).measured.gram.products
        for threads in (1, 2, 5, 8)
    ]
    wide = q.astype(np.int64)
    steps = np.sqrt(np.diagonal(found[0]) / np.square(wide).sum(axis=1))
    np.testing.assert_allclose(found[0], np.outer(steps, steps) * (wide @ wide.T), rtol=1e-12)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000])
def test_threads_have_about_as_many_pairs_each(n, threads):
    parts = measure_step._triangle(n, threads)
    assert [row for part in parts for row in part] == list(range(n))
    assert len(parts) == threads
    pairs = [sum(n - row for row in part) for part in parts]
    assert max(pairs) - min(pairs) <= 2 * n


def test_a_spooled_row_of_integers_that_has_changed_is_out_and_nothing_else_is(simulate):
    q = integers(d=LONG)
    rows = (STEPS[:, None] * q).astype(np.float32)
    round_ = simulate(rows=rows, upload="int8", tile=256, defence="multi-krum", budget=0).open()
    round_.send_all()
    round_.close()
    sealed = bytearray(round_.spool[round_.uploads[ME], 11])
    sealed[5] ^= 1
    round_.spool[round_.uploads[ME], 11] = bytes(sealed)
    with pytest.raises(UpdateRejected) as changed:
        round_.try_to_measure()
    assert changed.value.reason is Rejection.CHANGED
    round_.measure()
    assert not round_.measured.gram.products[ME].any()
    assert round_.measured.gram.deviation == 2.0**-48
    round_.assert_result(round_.average(), {ME: Rejection.CHANGED})


def test_law19_the_longest_rows_do_not_wrap_around():
    """|q|^2 = (p - 1)/2 to within a part in a thousand, for opposite and equal rows."""
    d = 200_000
    q = np.full((6, d), 73, np.int8)
    q[3:] *= -1
    q[:, 0] = 127
    assert 0.99 * exact.MAX_SQUARE < INT8.square(q[0]) <= exact.MAX_SQUARE
    simulation_rows = (0.5 * q).astype(np.float32)
    result = run_round(simulation_rows, f=0, upload="int8", rule="mean")
    assert not result.rejected
    np.testing.assert_allclose(result.aggregate[1:], 0, atol=1e-12)


def test_a_worker_that_lies_about_integers_is_found(simulate):
    rows = representable("int8")
    round_ = simulate(masking="exact", upload="int8", rows=rows).open()
    round_.send_all()
    round_.close()
    attempt = round_.offload()
    attempt.connect(attempt.accepts())
    attempt.encode()
    told = attempt.told(1)
    told[3] = (told[3] + 1) % field.P
    answers = [attempt.answers()[0], attempt.lie(1, told)]
    with pytest.raises(WorkerLied) as lie:
        attempt.decode(answers)
    assert lie.value.workers == ("worker-2",)
    round_.measure()
    round_.assert_result(round_.average(), {})


# Violations.


def forged(round_, change=None, *, factor=1.0, step=None, norm=None):
    """An int8 upload of client 2 that breaks the format."""
    q, own = integers()[ME].copy(), float(STEPS[ME])
    stated = own * math.sqrt(INT8.square(q)) * factor if norm is None else norm
    if change is not None:
        change(q)
    return round_.forge(ME, q, norm=stated, step=own if step is None else step)


def put(place, value):
    def change(q):
        q[place] = value

    return change


HEADERS = {
    "a step that is too small": ({"step": 2.0**-101}, Rejection.BAD_STEP),
    "a step that is too large": ({"step": 2.0**101}, Rejection.BAD_STEP),
    "a negative step": ({"step": -(2.0**-8)}, Rejection.BAD_STEP),
    "a step that is no number": ({"step": math.nan}, Rejection.BAD_STEP),
    "a step of too many bits": ({"step": 2.0**-8 * (1 + 2.0**-30)}, Rejection.BAD_STEP),
    "no step, and a norm": ({"step": 0.0}, Rejection.BAD_STEP),
    "a step, and no norm": ({"norm": 0.0}, Rejection.BAD_NORM),
    "a norm that no integers have": ({"factor": 1 + 1e-6}, Rejection.BAD_NORM),
    "a norm that is no number": ({"norm": math.nan}, Rejection.BAD_NORM),
    "a norm that wraps around": ({"norm": 2.0**-8 * 32768}, Rejection.BAD_NORM),
}


@pytest.mark.parametrize(("how", "reason"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_cannot_be_true_is_refused_and_a_good_one_is_welcome(simulate, how, reason):
    round_ = simulate(masking="exact", upload="int8", rows=representable("int8")).open()
    with pytest.raises(UpdateRejected) as refused:
        round_.accept(forged(round_, **how).header)
    assert refused.value.reason is reason
    assert reason.provable
    round_.send_all()
    round_.assert_result(round_.finish(), {})


ONE_MORE = float(STEPS[ME]) * math.sqrt(INT8.square(integers()[ME]) + 1)
ONE_LESS = float(STEPS[ME]) * math.sqrt(INT8.square(integers()[ME]) - 1)

TILES = {
    "a value of -128": ({"change": put(20, -128)}, Rejection.BAD_VALUE),
    "a value of -128 in the last place": ({"change": put(49, -128)}, Rejection.BAD_VALUE),
    "a square that is too large by one": ({"norm": ONE_LESS}, Rejection.FALSE_NORM),
    "a square that is too small by one": ({"norm": ONE_MORE}, Rejection.FALSE_NORM),
    "values that are far too large": ({"change": put(slice(None), 127)}, Rejection.FALSE_NORM),
    "zeros, and another norm": ({"change": put(slice(None), 0)}, Rejection.FALSE_NORM),
    "no step and no norm, and values": ({"step": 0.0, "norm": 0.0}, Rejection.FALSE_NORM),
}


@pytest.mark.parametrize(("how", "reason"), TILES.values(), ids=TILES)
def test_integers_that_break_the_format_are_out_alone_and_provably(simulate, masking, how, reason):
    rows = representable("int8")
    round_ = simulate(masking=masking, upload="int8", rows=rows, defence="multi-krum").open()
    round_.send(forged(round_, **how))
    round_.send_all(but=[ME])
    assert reason.provable
    round_.assert_result(round_.finish(), {ME: reason})


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0x7C00, 0xFFFF])
def test_halves_that_are_not_finite_are_found_by_the_enclave(simulate, masking, name, bits):
    rows = representable(name)
    values = FORMATS[name].encode(rows[ME], SecretStream(bytes(32)).fill).values.copy()
    norm = float(np.linalg.norm(rows[ME].astype(float)))
    values.view(np.uint16)[20] = bits
    wide = np.empty(50, np.float32)
    FORMATS[name].widen(values, 0.0, wide)
    reason = Rejection.FALSE_NORM if np.isfinite(wide).all() else Rejection.NOT_FINITE
    round_ = simulate(masking=masking, upload=name, rows=rows, defence="multi-krum").open()
    round_.send(round_.forge(ME, values, norm=norm))
    round_.send_all(but=[ME])
    round_.assert_result(round_.finish(), {ME: reason})


def test_floats_with_a_step_are_refused(simulate):
    round_ = simulate(upload="float32").open()
    with pytest.raises(UpdateRejected) as refused:
        round_.accept(round_.forge(ME, step=0.5).header)
    assert refused.value.reason is Rejection.BAD_STEP
    round_.send_all()
    round_.assert_result(round_.finish(), {})


def test_a_tile_of_another_format_has_the_wrong_length(simulate):
    round_ = simulate(upload="float16", rows=representable("float16")).open()
    long = round_.forge(ME, representable("float16")[ME])
    round_.accept(long.header)
    with pytest.raises(Exception, match="does not open"):
        round_.accept_tile(long.tiles[0])
