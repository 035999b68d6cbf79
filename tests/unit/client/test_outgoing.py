"""Error feedback: what rounding takes goes out later, once, whatever happens in between."""

from dataclasses import replace

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ostraka.client.kept import InMemory, KeptFiles
from ostraka.client.momentum import Momentum
from ostraka.client.outgoing import Feedback, Outgoing
from ostraka.config import Manifest, Tensor, Terms
from ostraka.crypto.stream import SecretStream
from ostraka.errors import ConfigError, ServiceError, StateError

ID, D = b"i" * 32, 17
MANIFEST = Manifest((Tensor("weight", (4, 3)), Tensor("bias", (5,))))
BATCH_NORM = Manifest((Tensor("conv.weight", (3,)), Tensor("bn.running_var", (2,))))
SHORT = ["bfloat16", "float16", "int8"]


def terms(upload, manifest=MANIFEST):
    return Terms(manifest, f=0, masking="none", upload=upload)


def entropy(seed=1):
    return SecretStream(bytes([seed]) * 32).bytes


def update(seed=0, d=D):
    return np.random.default_rng(seed).normal(size=d).astype(np.float32)


@pytest.fixture(params=["in memory", "in files"])
def keep(request, tmp_path):
    """Makes the error feedback of one client, as a new process would."""
    memories = {name: InMemory() for name in ("float32", *SHORT)}

    def kept(name):
        path = tmp_path / f"alice.memory.{name}-residual"
        on_disk = KeptFiles(path, "alice", ID, MANIFEST, f"{name}-residual")
        return memories[name] if request.param == "in memory" else on_disk

    def make(upload="int8", seed=1):
        others = [kept(name) for name in memories if name != upload]
        return Feedback(terms(upload), kept(upload), others, entropy(seed))

    return make


# The law.


@pytest.mark.parametrize("name", SHORT)
@given(rows=arrays("<f4", (6, D), elements=st.floats(-100, 100, width=16)))
def test_all_that_was_meant_has_gone_out_but_the_last_residual(name, rows):
    mine = Feedback(terms(name), InMemory(), [], entropy())
    sent = [mine.apply(row, number).widened().astype(float) for number, row in enumerate(rows, 1)]
    residual = mine.kept.read(len(rows)).astype(float)
    np.testing.assert_allclose(np.sum(sent, axis=0) + residual, rows.sum(axis=0), atol=1e-3)
    assert mine.kept.numbers() <= {len(rows) - 1, len(rows)}


def test_small_values_go_out_in_the_end():
    """Beside a large value a small one is below half a step: without feedback it would be noise."""
    mine, small = Feedback(terms("int8"), InMemory(), [], entropy()), np.full(D, 0.01, "<f4")
    small[0] = 10
    sent = [mine.apply(small, number).widened() for number in range(1, 201)]
    total = np.sum(sent, axis=0, dtype=float)
    assert abs(total[1:] - 2.0).max() < 0.1  # A step is 0.08.


def test_momentum_comes_first():
    momentum = Momentum(0.5, MANIFEST, InMemory())
    way_out = Outgoing(momentum, Feedback(terms("bfloat16"), InMemory(), [], entropy()))
    rows = [update(seed) for seed in range(3)]
    mean = residual = np.zeros(D, np.float32)
    for number, row in enumerate(rows, 1):
        sent = way_out.apply(row, number).widened()
        mean = row if number == 1 else (0.5 * mean.astype(float) + 0.5 * row).astype(np.float32)
        target = mean + residual
        np.testing.assert_array_equal(sent, rounded_to_bfloat16(target))
        residual = target - sent
        np.testing.assert_array_equal(momentum.kept.read(number), mean)


def rounded_to_bfloat16(values):
    """By rounding the 24 bits of a float32 to 8, to even."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float32)


def test_statistics_have_no_residual():
    """They are measured anew, as a difference from the model."""
    mine = Feedback(terms("int8", BATCH_NORM), InMemory(), [], entropy())
    mine.apply(np.array([0.3, 0.7, -1, 0.123, 0.456], "<f4"), 1)
    residual = mine.kept.read(1)
    assert residual[:3].any()
    assert not residual[3:].any()


# Once, whatever happens.


def test_a_round_that_is_opened_again_begins_from_the_number_before(keep):
    keep().apply(update(1), 1)
    before = keep().kept.read(1)
    for attempt in range(3):
        sent = keep(seed=attempt).apply(update(2), 2).widened()
        np.testing.assert_allclose(sent + keep().kept.read(2), update(2) + before, atol=1e-6)
        np.testing.assert_array_equal(keep().kept.read(1), before)
    assert keep().kept.numbers() == {1, 2}


def test_a_number_that_was_missed_loses_nothing(keep):
    keep().apply(update(1), 1)
    before = keep().kept.read(1)
    sent = keep().apply(update(2), 9).widened()
    np.testing.assert_allclose(sent + keep().kept.read(9), update(2) + before, atol=1e-6)


def test_another_format_drops_it(keep):
    keep("int8").apply(update(1), 1)
    keep("float16").apply(update(2), 2)
    assert keep("float16").kept.numbers() == {2}
    assert not keep("int8").kept.numbers()
    np.testing.assert_array_equal(keep("float32").apply(update(3), 3).widened(), update(3))
    assert not keep("float16").kept.numbers()
    sent = keep("int8").apply(update(4), 4).widened()
    np.testing.assert_allclose(sent + keep().kept.read(4), update(4), atol=1e-6)


def test_float32_keeps_and_copies_nothing(keep, tmp_path):
    given = update()
    keep("float32").require_usable(1)
    assert keep("float32").apply(given, 1).values is given
    assert not keep("float32").kept.numbers()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_enters_it(keep, bad):
    keep().apply(update(1), 1)
    before = keep().kept.read(1)
    spoilt = update(2)
    spoilt[3] = bad
    assert not np.isfinite(keep().apply(spoilt, 2).norm)
    assert keep().kept.numbers() == {1}
    sent = keep().apply(update(2), 2).widened()
    np.testing.assert_allclose(sent + keep().kept.read(2), update(2) + before, atol=1e-6)


def test_a_value_out_of_range_leaves_no_trace(keep):
    keep("float16").apply(update(1), 1)
    huge = update(2)
    huge[0] = 1e6
    with pytest.raises(ConfigError, match="float16 ends at 65504"):
        keep("float16").apply(huge, 2)
    assert keep("float16").kept.numbers() == {1}


def test_a_file_of_another_name_is_refused(tmp_path):
    mine = KeptFiles(tmp_path / "a.int8-residual", "alice", ID, MANIFEST, "int8-residual")
    other = KeptFiles(tmp_path / "a.int8-residual", "alice", ID, MANIFEST, "momentum")
    other.write(1, update())
    with pytest.raises(StateError, match=r"the momentum of this client, not the int8-residual"):
        Feedback(terms("int8"), mine).require_usable(2)
    mine._file(1).write_bytes(b"rubbish")
    with pytest.raises(StateError, match=r"residual-1: is damaged.*int8-residual goes on from"):
        Feedback(terms("int8"), mine).apply(update(), 2)


# A client, over the network.


def with_upload(charter, upload, revision, **changes):
    changed = replace(charter().federation.terms, upload=upload, client_momentum=0.0, **changes)
    return charter(revision=revision, terms=changed)


@pytest.fixture(params=SHORT)
def short(request, service, charter):
    """The name of a format, which is the federation's from now on."""
    service.adopt(with_upload(charter, request.param, 2))
    return request.param


def residual(folder, upload, number):
    name = f"*.{upload}-residual-{number}"
    (file,) = folder.glob(name)
    return np.frombuffer(file.read_bytes()[-4 * D :], "<f4")


def test_an_update_counts_once_over_errors_and_restarts(short, connect, service, went_out, folder):
    """Three others send zeros. Each time it is another process of the client."""
    start = service.state.model
    with connect() as alice:
        alice.fetch()
        assert alice.submit(update(1)).accepted
    first = residual(folder, short, 1)
    with connect() as again:
        again.fetch()
        service.failures["Upload"] = [(grpc.StatusCode.PERMISSION_DENIED, "not now")]
        with pytest.raises(ServiceError):
            again.submit(update(2))
    with connect() as again:
        again.fetch()
        service.restart()
        assert again.submit(update(2)).accepted
    assert [number for number, _ in went_out] == [1, 2, 2, 2]
    for _, sent in went_out[1:]:
        assert abs(sent - update(2) - first).max() <= 0.03
    sent, last = went_out[-1][1], residual(folder, short, 2)
    np.testing.assert_allclose(sent + last, update(2) + first, atol=1e-6)
    total = went_out[0][1].astype(float) + sent
    np.testing.assert_allclose(4 * (service.state.model - start), total, atol=1e-5)


def test_a_revision_that_changes_the_format_drops_the_residual(
    alice, service, charter, went_out, folder
):
    service.adopt(with_upload(charter, "int8", 2))
    alice.fetch()
    alice.submit(update(1))
    service.adopt(with_upload(charter, "float32", 3))
    alice.fetch()
    alice.submit(update(2))
    np.testing.assert_array_equal(went_out[-1][1], update(2))
    assert not list(folder.glob("*residual-[0-9]*"))


def test_a_value_beyond_float16_is_refused_before_anything_is_sent(
    alice, service, charter, went_out
):
    service.adopt(with_upload(charter, "float16", 2))
    alice.fetch()
    with pytest.raises(ConfigError, match=r"7e\+04, and float16 ends at 65504.*bfloat16"):
        alice.submit(np.full(D, 7e4, "<f4"))
    assert not went_out
    assert alice.submit(update(1)).accepted
