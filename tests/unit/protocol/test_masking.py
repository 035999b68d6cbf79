"""Who is named when the answers of an attempt contradict what the enclave knows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ostraka.core.gram import naive
from ostraka.errors import LocalProtocolError
from ostraka.protocol.enclave import Dispute
from ostraka.protocol.enclave.encoders import FloatAuditor


def liars(*doubts: float) -> tuple[str, ...]:
    """The workers that are named if this is how far each answer is from the truth."""
    names = tuple(f"worker-{number}" for number in range(1, len(doubts) + 1))
    nothing: Any = None
    auditors: Any = [SimpleNamespace(doubt=lambda matrix, doubt=doubt: doubt) for doubt in doubts]
    return Dispute(nothing, nothing, nothing, [nothing] * len(doubts), names)._liars(auditors)


def test_every_answer_that_is_surely_false_is_named_and_no_rounding():
    assert liars(0.3, 5.0) == ("worker-2",)
    assert liars(1.0, 7.0) == ("worker-1", "worker-2")


def test_doubt_counts_the_errors_of_two_sums():
    rows = np.random.default_rng(0).normal(size=(4, 10))
    auditor = FloatAuditor(4, 1e-3)
    auditor.add(rows[:, :6])
    auditor.add(rows[:, 6:])
    answer = naive(rows)
    assert auditor.doubt(answer) < 1e-9
    answer[1, 2] -= 6e-3
    assert auditor.doubt(answer) == pytest.approx(3)


def test_where_none_is_surely_false_the_worst_is_named():
    assert liars(0.3, 0.6) == ("worker-2",)
    assert liars(0.0, 1e-6) == ("worker-2",)


def test_answers_that_are_all_true_by_themselves_are_no_worker_s_fault():
    with pytest.raises(LocalProtocolError, match="each is right by itself"):
        liars(0.0, 0.0)
