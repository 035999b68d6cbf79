"""A round's loop is woken when the round can go on, and not for every upload."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ostraka.enclave.open_round import OpenRound
from ostraka.errors import Rejection

NAMES = [f"client-{number}" for number in range(1, 6)]
QUORUM, F = 3, 1

SPOILT = dict.fromkeys(NAMES[:2], Rejection.FALSE_NORM)


def wakes(complete: int, spoilt: dict[str, Rejection], *, quorate: bool) -> bool:
    """Whether the loop is woken after the last `complete` clients have completed theirs."""
    intake: Any = SimpleNamespace(complete=frozenset(NAMES[len(NAMES) - complete :]), spoilt=spoilt)
    members = tuple(SimpleNamespace(name=name) for name in NAMES)
    federation: Any = SimpleNamespace(clients=members, terms=SimpleNamespace(f=F))
    current = OpenRound(intake, federation, QUORUM, asyncio.Event(), quorate=quorate)
    current.note_change()
    return current.changed.is_set()


@pytest.mark.parametrize(
    ("complete", "spoilt", "quorate", "woken"),
    [
        pytest.param(QUORUM - 1, {}, False, False, id="too few"),
        pytest.param(QUORUM, {}, False, True, id="the quorum"),
        pytest.param(QUORUM + 1, {}, True, False, id="one more than the quorum, which was told"),
        pytest.param(len(NAMES), {}, True, True, id="all"),
        pytest.param(1, SPOILT, False, False, id="liars count as f at most"),
        pytest.param(3, SPOILT, True, True, id="nobody is awaited but liars"),
    ],
)
def test_a_round_wakes_for_its_quorum_and_for_the_last_answer(complete, spoilt, quorate, woken):
    assert wakes(complete, spoilt, quorate=quorate) is woken
