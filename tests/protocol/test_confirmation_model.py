"""Every state of the confirmation protocol is searched, for up to five clients with one liar.

The model and what it must withstand are in confirmation_model.py. `pytest -s` prints the number of
states of each setting. Nothing here runs the real roles; the laws are the same.
"""

import importlib.util
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


def _load(name: str) -> Any:
    """The test folders are no packages, so a module beside this one is loaded by its path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look their module up.
    spec.loader.exec_module(module)
    return module


model = _load("confirmation_model")
Broken, Copies, Setting, Votes = model.Broken, model.Copies, model.Setting, model.Votes
FORK, TWICE, UNDONE = model.FORK, model.TWICE, model.UNDONE


def searched(machine, **how):
    found = model.search(machine, **how)
    report(machine, found.states)
    return found


def report(machine, states: int) -> None:
    print(f"\n{type(machine).__name__}, {machine.setting}: {states:,} states")  # noqa: T201


def soak(*settings):
    return [pytest.param(*setting, marks=pytest.mark.soak) for setting in settings]


def named(value):
    return str(value) if isinstance(value, Setting) else None


# The arithmetic alone.

SIZES = [(n, f) for n in range(1, 10) for f in range(n)]


def honest_voters(n: int, f: int, quorum: int) -> list[int]:
    """The honest part of every set of at least `quorum` voters, as bits. The first f voters lie."""
    return [voters >> f for voters in range(1 << n) if voters.bit_count() >= quorum]


@pytest.mark.parametrize(("n", "f"), SIZES)
def test_any_two_quorums_share_an_honest_voter_and_one_vote_fewer_do_not(n, f):
    quorum = Setting(n - f, byzantine=f, f=f).quorum(0)
    enough, too_few = (set(honest_voters(n, f, votes)) for votes in (quorum, quorum - 1))
    assert all(one & other for one in enough for other in enough)
    assert any(not one & other for one in too_few for other in too_few)


@pytest.mark.parametrize(("n", "f"), SIZES)
def test_honest_voters_alone_are_a_quorum_iff_n_exceeds_3f(n, f):
    assert (n - f >= Setting(n - f, byzantine=f, f=f).quorum(0)) == (n > 3 * f)


# The protocol as it is.


def change_of_roster(n: int, f: int, leave: int, join: int, kind: str = "byzantine") -> Any:
    return Setting(n - f - leave, leave, join, f=f, **{kind: f})


REPLACED, JOINED, LEFT = (1, 1), (0, 1), (1, 0)

SAMPLED = [
    *(Setting(n - f, byzantine=f, f=f) for f in (0, 1) for n in range(1 + f, 5)),
    *(change_of_roster(n, f, *REPLACED) for f in (0, 1) for n in range(1 + f, 5) if n - f < 4),
    *(change_of_roster(n, f, *JOINED) for f in (0, 1) for n in range(1 + f, 4)),
    *(change_of_roster(n, f, *LEFT) for f in (0, 1) for n in range(2 + f, 5) if n - f < 4),
    *(Setting(n - 1, amnesiac=1, f=1) for n in (2, 3)),
    change_of_roster(2, 1, *REPLACED, "amnesiac"),
]
FULL = [
    *(Setting(5 - f, byzantine=f, f=f) for f in (0, 1)),
    *(change_of_roster(n, f, *REPLACED) for n, f in ((4, 0), (5, 0), (5, 1))),
    *(change_of_roster(4, f, *JOINED) for f in (0, 1)),
    *(change_of_roster(n, f, *LEFT) for n, f in ((4, 0), (5, 0), (5, 1))),
    *(Setting(n - 1, amnesiac=1, f=1) for n in (4, 5)),
    change_of_roster(3, 1, *REPLACED, "amnesiac"),
]


@pytest.mark.parametrize("setting", [*SAMPLED, *soak(*zip(FULL))], ids=named)
def test_whatever_the_host_does_a_number_has_one_outcome(setting):
    found = searched(Votes(setting))
    assert found.violation is None, str(found)
    assert found.finishes


@pytest.mark.parametrize(
    ("setting", "copies"),
    [
        (Setting(1), 2),
        (Setting(1, byzantine=1, f=1), 2),
        (Setting(2, byzantine=1, f=1, authority=False), 2),
        *soak(
            (Setting(2), 2),
            (Setting(2, byzantine=1, f=1), 1),
            (Setting(0, 1, 1), 1),
            (Setting(0, 1, 1, authority=False), 2),
            (Setting(1, 1, 1, authority=False), 1),
            (Setting(3, byzantine=1, f=1, authority=False), 2),
        ),
    ],
    ids=named,
)
def test_the_machine_without_copies_reaches_all_that_the_one_with_copies_does(setting, copies):
    """One copy that is rolled back does what two can do, and is searched where two are too many."""
    explicit, reduced = settled(Copies(setting, copies)), settled(Votes(setting))
    assert explicit == reduced
    assert not any(setting.violations(public) for _, public in explicit)


def settled(machine):
    """What was signed, released and abandoned, in states where all that can be released is."""
    states = list(model.discover(machine, {}))
    report(machine, len(states))
    pairs = {
        (frozenset(Counter(machine.signed(state)).items()), machine.public(state))
        for state in states
    }
    return {(signed, public) for signed, public in pairs if not owed(machine, signed, public)}


def owed(machine, signed, public):
    """The outcomes that have a quorum and are not released yet."""
    setting = machine.setting
    return [
        outcome
        for number in model.NUMBERS
        for parent in setting.results(public, number - 1)
        for outcome in setting.outcomes(number, parent)
        if outcome not in public.released
        and setting.confirmed(outcome, voters_for(outcome, signed))
    ]


def voters_for(outcome, signed):
    return [kind for (kind, votes), count in signed for _ in range(count) if outcome in votes]


@pytest.mark.parametrize(("n", "f"), list(itertools.product(range(1, 6), (0, 1))))
def test_with_f_silent_clients_rounds_go_on_iff_n_exceeds_3f(n, f):
    found = searched(Votes(Setting(n - f, byzantine=f, f=f, silent=True, authority=False)))
    assert found.violation is None, str(found)
    assert found.finishes == (n > 3 * f)


# The search can fail: each mistake is found.

FOUR, ONE_REPLACED = (3, 0, 0), (2, 1, 1)

MISTAKES = {
    "the newest charter's quorum": (ONE_REPLACED, Broken.NEWEST_CHARTER, FORK),
    "a resend into another number": (FOUR, Broken.RESENT_ELSEWHERE, TWICE),
    "a vote that is signed before it is written": (FOUR, Broken.SIGNED_UNWRITTEN, FORK),
    "a `none` that does not bind": (FOUR, Broken.NONE_NOT_BINDING, UNDONE),
    "a proof that trusts those who answered": (FOUR, Broken.PROOF_WITHOUT_F, UNDONE),
    "an Abandon without its proof": (FOUR, Broken.UNPROVEN_TAKEN, UNDONE),
    "an Abandon without its proof that hides a charter": (
        ONE_REPLACED,
        Broken.UNPROVEN_TAKEN,
        FORK,
    ),
}


@pytest.mark.parametrize(("clients", "broken", "violation"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_found(clients, broken, violation):
    found = searched(
        Votes(Setting(*clients, byzantine=1, f=1, broken=broken)), forbidden=[violation]
    )
    print(found)  # noqa: T201
    assert found.violation == violation


@pytest.mark.parametrize(("n", "f"), [(n, f) for f in (0, 1) for n in range(1 + f, 6)])
def test_one_vote_fewer_forks_every_federation(n, f):
    setting = Setting(n - f, byzantine=f, f=f, broken=Broken.QUORUM_LOWERED)
    assert searched(Votes(setting), forbidden=[FORK]).violation == FORK


def test_an_amnesiac_client_beside_f_byzantine_ones_forks():
    found = searched(Votes(Setting(2, byzantine=1, amnesiac=1, f=1)))
    print(found)  # noqa: T201
    assert found.violation == FORK


STEP_BY_STEP = {
    "one vote fewer": ((2,), Broken.QUORUM_LOWERED, FORK),
    "the newest charter's quorum": ((0, 1, 1), Broken.NEWEST_CHARTER, FORK),
    "a resend into another number": ((1,), Broken.RESENT_ELSEWHERE, TWICE),
    "a vote that is signed before it is written": ((1,), Broken.SIGNED_UNWRITTEN, FORK),
    "an amnesiac client that f does not count": ((0, 0, 0, 0, 1), Broken.NOTHING, FORK),
}


@pytest.mark.parametrize(
    ("clients", "broken", "violation"), STEP_BY_STEP.values(), ids=STEP_BY_STEP.keys()
)
def test_two_copies_show_a_mistake_step_by_step(clients, broken, violation):
    setting = Setting(*clients, broken=broken, authority=False)
    found = searched(Copies(setting), forbidden=[violation])
    print(found)  # noqa: T201
    assert found.violation == violation
    assert "releases" in found.trace[-1]


def test_the_trace_is_the_shortest():
    """One honest vote and the liar's are enough for each of two outcomes."""
    setting = Setting(3, byzantine=1, f=1, broken=Broken.QUORUM_LOWERED)
    verbs = [words.split(" outcome")[0] for words in model.search(Votes(setting), [FORK]).trace]
    vote, release = "a client (stay) confirms", "a copy has a quorum and releases"
    assert Counter(verbs) == {vote: 2, release: 2}


# What two measures are for.


@pytest.mark.parametrize("f", [0, 1])
def test_a_volatile_pending_outcome_does_not_fork(f):
    """The votes alone prevent it. A rollback loses a pending outcome as a crash does."""
    found = searched(Copies(Setting(1, byzantine=f, f=f, broken=Broken.PENDING_VOLATILE)))
    assert found.violation is None, str(found)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_durable_pending_outcome_keeps_an_honest_host_going(n):
    """What a crash loses cannot be made again, and the votes for it are spent."""
    durable = Setting(n, authority=False)
    volatile = Setting(n, authority=False, broken=Broken.PENDING_VOLATILE)
    assert model.dead_end(Copies(durable, copies=1, honest_host=True)) is None
    way = model.dead_end(Copies(volatile, copies=1, honest_host=True))
    assert way is not None
    assert any("crashes" in words for words in way)


def test_an_owners_word_after_an_unproven_abandon_is_safe_under_one_roster():
    found = searched(Votes(Setting(3, byzantine=1, f=1, broken=Broken.OWNERS_WORD)))
    assert found.violation is None, str(found)


def test_an_owners_word_forks_if_the_lost_outcome_named_another_charter():
    """Then two rosters rule the next number, one on each branch."""
    setting = Setting(2, 1, 1, byzantine=1, f=1, broken=Broken.OWNERS_WORD)
    found = searched(Votes(setting), forbidden=[FORK])
    print(found)  # noqa: T201
    assert found.violation == FORK


@pytest.mark.parametrize(
    "clients", [(0, 1, 1), (1, 1, 1), pytest.param((2, 1, 1), marks=pytest.mark.soak)]
)
def test_an_owners_word_is_safe_if_both_rosters_confirm_the_next_number(clients):
    setting = Setting(*clients, byzantine=1, f=1, broken=Broken.OWNERS_WORD, both_rosters=True)
    found = searched(Votes(setting))
    assert found.violation is None, str(found)
