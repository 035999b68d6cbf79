"""The leader board of a comparison: its defences by their worst case, with cost and guarantees."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ostraka.config import MASKINGS
from ostraka.core.rules import Composition, resilience
from ostraka_lab.baselines import PLAIN
from ostraka_lab.compare import Comparison, Result, Scenario, Spread, within
from ostraka_lab.experiment import NO_ATTACK
from ostraka_lab.report import Block, Column, Paragraph, Table

_HEADINGS = (
    "defence",
    "worst case",
    "by",
    "mean under attack",
    "without attack",
    "backdoor",
    "ms",
    "copies move it",
    "needs",
)
_TEXTS = ("defence", "by", "needs")


@dataclass(frozen=True)
class Leader:
    """A defence of a comparison.

    worst: in its worst scenario, which is `scenario`; None until all runs are over. attacked,
    unattacked: its mean accuracy with any attack, and with none. backdoor: how often one works.
    aggregate_s: what a round took to aggregate. absent: scenarios with too few clients for it.
    least: the clients that it needs, by scenario. moved: how far copies of one update move the
    aggregate at most, in the scenario with most attackers and in spreads of the honest updates.
    remarks: what it needs besides, and what it gives away.
    """

    defence: str
    worst: Spread | None
    scenario: Scenario | None
    attacked: float | None
    unattacked: float | None
    backdoor: float | None
    aggregate_s: float | None
    absent: tuple[Scenario, ...]
    least: tuple[int, ...]
    moved: float | None
    remarks: tuple[str, ...]


def of(comparison: Comparison, results: Sequence[Result]) -> list[Leader]:
    """All defences, the best first; those that are absent somewhere, and unfinished ones, last."""
    found = [_leader(comparison, defence, results) for defence in comparison.defences]
    return sorted(found, key=_place)


def _place(leader: Leader) -> tuple[bool, int, float]:
    return leader.worst is None, len(leader.absent), -(leader.worst.mean if leader.worst else 0)


def _leader(comparison: Comparison, defence: str, results: Sequence[Result]) -> Leader:
    own = [each for each in results if each.defence == defence]
    standing = [each for each in comparison.scenarios if comparison.stands(each, defence)]
    worst = {each: comparison.worst(within(own, each), defence) for each in standing}
    whole = {each: spread for each, spread in worst.items() if spread is not None}
    where = min(whole, key=lambda each: whole[each].mean) if len(whole) == len(worst) else None
    composition = _composition(comparison, defence)
    return Leader(
        defence=defence,
        worst=whole[where] if where else None,
        scenario=where,
        attacked=_mean(each.accuracy or 0.0 for each in own if each.attack != NO_ATTACK),
        unattacked=_mean(each.accuracy or 0.0 for each in own if each.attack == NO_ATTACK),
        backdoor=max((e.attack_success for e in own if e.attack_success is not None), default=None),
        aggregate_s=_mean(each.aggregate_s for each in own if each.aggregate_s is not None),
        absent=tuple(each for each in comparison.scenarios if each not in standing),
        least=tuple(composition.least(f) for f in _tolerated(comparison)) if composition else (),
        moved=_moved(comparison, composition, standing),
        remarks=tuple(_remarks(composition)),
    )


def _composition(comparison: Comparison, defence: str) -> Composition | None:
    if defence == PLAIN:
        return None
    experiment = comparison.experiment
    return experiment.composition if defence in MASKINGS else experiment.composed(defence)


def _tolerated(comparison: Comparison) -> list[int]:
    experiment = comparison.experiment
    if experiment.f is not None:
        return [experiment.f]
    return sorted(set(comparison.attackers or (experiment.byzantine,)))


def _moved(
    comparison: Comparison, composition: Composition | None, standing: Sequence[Scenario]
) -> float | None:
    if composition is None or not standing:
        return None
    n, most = comparison.experiment.clients, max(each.byzantine for each in standing)
    f = comparison.experiment.f if comparison.experiment.f is not None else most
    return round(resilience.reach(composition, n, f).moved, 2) if f else None


def _remarks(composition: Composition | None) -> Iterator[str]:
    if composition is None:
        yield "bounds nothing"
        return
    if not composition.robust:
        yield "bounds nothing"
    if composition.rule.needs_root:
        yield "trusts a root client"
    if composition.discloses:
        yield "publishes single values"
    if composition.needs_last:
        yield "keeps the last aggregate"


def blocks(comparison: Comparison, results: Sequence[Result]) -> list[Block]:
    """The leader board, and what its columns mean."""
    return [Paragraph(_EXPLANATION), table(comparison, results)]


_EXPLANATION = (
    "Defences by the lowest accuracy under any attack in any scenario. Backdoor: how often the "
    "trigger of a backdoor works at most. ms: what aggregating takes one processor in the clear; "
    "compare these with each other only. Copies move it: how far as many copies of one update as "
    "there are attackers move the aggregate, at most, in units of the honest updates' spread "
    "(docs/attacks.md). A defence that needs more clients than some scenario has comes last."
)


def table(comparison: Comparison, results: Sequence[Result]) -> Table:
    columns = [Column(name, number=name not in _TEXTS) for name in _HEADINGS]
    return Table(columns, [_row(comparison, each) for each in of(comparison, results)])


def _row(comparison: Comparison, leader: Leader) -> list[str]:
    by = "-"
    if leader.worst and leader.scenario:
        several = len(comparison.scenarios) > 1
        by = leader.worst.attack + (f" ({leader.scenario})" if several else "")
    return [
        leader.defence,
        percent(leader.worst),
        by,
        _percent(leader.attacked),
        _percent(leader.unattacked),
        _percent(leader.backdoor),
        "-" if leader.aggregate_s is None else f"{1000 * leader.aggregate_s:.1f}",
        "-" if leader.moved is None else f"{leader.moved:.2f}",
        "; ".join(_needs(leader)) or "-",
    ]


def _needs(leader: Leader) -> Iterator[str]:
    if leader.least:
        yield f"n ≥ {', '.join(map(str, leader.least))}"
    yield from leader.remarks
    yield from (f"not with {each}" for each in leader.absent)


def figures(comparison: Comparison, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [asdict(each) for each in of(comparison, results)]


def percent(spread: Spread | None) -> str:
    """The mean of some seeds, and their range if they are several."""
    if spread is None:
        return "-"
    mean = _percent(spread.mean)
    if spread.seeds == 1:
        return mean
    return f"{mean} ({100 * spread.least:.1f}–{100 * spread.most:.1f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _mean(figures: Iterator[float]) -> float | None:
    known = list(figures)
    return statistics.fmean(known) if known else None
