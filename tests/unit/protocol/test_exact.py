"""The enclave's side of exact masking: what it checks, and what it rejects."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ostraka.config import Manifest, Terms
from ostraka.core import field
from ostraka.core.field import P
from ostraka.errors import LocalProtocolError, Rejection
from ostraka.protocol.enclave import Counted, Threads
from ostraka.protocol.enclave.cohort import Row, Standing
from ostraka.protocol.enclave.encoders import ExactEncoder, FieldAuditor

N, D = 5, 40
ROWS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
NORMS = np.sqrt((ROWS.astype(np.float64) ** 2).sum(axis=1))


class Reader:
    """As much of a reader as an encoder asks for."""

    def __init__(self) -> None:
        self.terms = Terms(Manifest.flat(D), f=1, tile=D)
        self.entropy = np.random.default_rng(1).bytes
        self.rows, self.threads, self.columns = range(N), Threads(), self.terms.tiling


def counted(rows: np.ndarray, norms: np.ndarray) -> Counted:
    """What an encoder makes of these columns if it was told these norms of the whole rows."""
    reader: Any = Reader()
    encoder = ExactEncoder(reader, bytes(32), np.ones(N), norms)
    encoder.load(0, range(N), list(rows))
    shares = encoder.shares(0, 0, range(N))
    matrices = [field.gram(share) for share in shares]
    encoder.witness(0, range(N))
    encoder.end_tile()
    decoded = encoder.decode(matrices)
    assert decoded is not None, "nobody has lied about the matrix"
    return decoded


def rejected(measured: Counted) -> dict[str, Rejection]:
    """Who is rejected when all columns are put together."""
    terms = Reader().terms
    rows = tuple(Row(str(row), b"", b"", 1.0, 0.0) for row in range(N))
    cohort: Any = SimpleNamespace(terms=terms, rows=rows, standing=Standing(terms, {}))
    measured.finish(cohort)
    return cohort.standing.rejected


def test_law7_a_row_too_long_for_its_step_is_rejected():
    """Beyond |q|^2 = (p - 1)/2 inner products wrap around, whoever let such a row through."""
    assert rejected(counted(ROWS, NORMS)) == {}
    understated = NORMS.copy()
    understated[2] *= 0.99
    assert rejected(counted(ROWS, understated)) == {"2": Rejection.FALSE_NORM}


def test_law18_columns_that_are_counted_apart_add_up_to_the_integer():
    """And a row that is too long in all of them together is rejected, as it is alone."""
    for factor, found in ((1.0, {}), (0.99, {"2": Rejection.FALSE_NORM})):
        norms = NORMS.copy()
        norms[2] *= factor
        left, right = ROWS.copy(), ROWS.copy()
        left[:, D // 2 :] = 0
        right[:, : D // 2] = 0
        one, two = counted(left, norms), counted(right, norms)
        both = one.with_(two)
        assert rejected(one) == rejected(two) == {}
        assert rejected(both) == found
        np.testing.assert_array_equal(both.gram, one.gram + two.gram)
        np.testing.assert_array_equal(both.s, np.diagonal(both.gram))
    with pytest.raises(LocalProtocolError, match="rounded the same rows differently"):
        one.with_(counted(right, NORMS))
    with pytest.raises(LocalProtocolError, match="rounded the same rows differently"):
        one.with_(replace(two, rounded=False))


@pytest.mark.parametrize("blind", [0, 1])
def test_law11_an_auditor_checks_both_columns_of_its_challenge(blind):
    """A lie that one column cannot see at all, because E v = 0, is seen by the other."""
    rng = np.random.default_rng(2)
    share, challenge = (rng.integers(0, P, (N, width)).astype(np.uint32) for width in (D, 2))
    auditor, truth = FieldAuditor(challenge), field.gram(share)
    auditor.add(share)
    first, second = (int(value) for value in challenge[:2, blind])
    lie = truth.astype(object)
    lie[:2, :2] += np.outer(*2 * [np.array([second, -first], object)])
    assert auditor.doubt(truth) == 0
    assert auditor.doubt((lie % P).astype(np.uint32)) == 1


def test_law11_the_columns_of_a_challenge_are_independent():
    """Two equal columns would be one, and a lie would pass with probability 2 / p."""
    reader: Any = Reader()
    encoder = ExactEncoder(reader, bytes(32), np.ones(N), NORMS)
    for challenge in (
        encoder._scratch[0].check._challenge,
        *(auditor._challenge for auditor in encoder.auditors()),
    ):
        assert challenge.shape == (N, 2)
        # Not even a multiple of each other.
        (a, b), (c, d) = challenge[:2].astype(object)
        assert (a * d - b * c) % P
