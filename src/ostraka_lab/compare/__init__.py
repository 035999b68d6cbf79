"""What is compared: every attack on every defence, in every scenario, with every seed.

A defence is `plain` averaging or any composition of rules, such as arc+nnm+geometric-median, in the
clear; or Ostraka's services under the experiment's own rule, in one of the maskings. A scenario is
how data are split, and how many clients attack.

    compare      this file: a comparison, its cells and their results
    running      runs the cells that are left
    checks       runs some of them again through the services, and compares the models

comparison.json     what is compared
results.json        the results
checks.json         the spot checks
cells/              a run's folder for every scenario, attack, defence and seed
"""

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from ostraka import files
from ostraka.config import MASKINGS
from ostraka.errors import ConfigError
from ostraka_lab import baselines
from ostraka_lab.baselines import PLAIN
from ostraka_lab.experiment import NO_ATTACK, Experiment
from ostraka_lab.folder import RunFolder
from ostraka_lab.metrics import RoundMetrics, read

_PUBLIC = 0o644
# What the services call the stages in which an aggregate comes about, and runs in the clear.
_AGGREGATING = ("measure", "average", baselines.AGGREGATE)


@dataclass(frozen=True)
class Scenario:
    """How data are split, and how many clients attack."""

    partition: str
    byzantine: int

    def __str__(self) -> str:
        return f"{self.partition}, {self.byzantine} attacker{'s' * (self.byzantine != 1)}"


@dataclass(frozen=True)
class Result:
    """One attack on one defence in one scenario, with one seed.

    accuracy: after the last round. selected: the number of the attackers' updates that had any
    weight, out of `sent`. attackers_share: their part in the aggregates, over all rounds; None
    where nobody can tell: Ostraka publishes no weights, and column-wise rules have none. failed:
    rounds without an aggregate. aggregate_s: what a round took to aggregate, on average, of
    processor time in the clear. accuracies: of all rounds that were evaluated, by round.
    """

    partition: str
    byzantine: int
    attack: str
    scale: float
    defence: str
    seed: int
    accuracy: float | None
    attack_success: float | None
    selected: int
    sent: int
    attackers_share: float | None
    failed: int
    aggregate_s: float | None
    seconds: float
    accuracies: dict[int, float]

    @property
    def scenario(self) -> Scenario:
        return Scenario(self.partition, self.byzantine)


@dataclass(frozen=True)
class Spread:
    """The accuracies of several seeds. attack: in the worst case, which one is the worst of all."""

    mean: float
    least: float
    most: float
    seeds: int
    attack: str

    @classmethod
    def of(cls, accuracies: Sequence[float], attack: str) -> "Spread":
        return cls(
            statistics.fmean(accuracies), min(accuracies), max(accuracies), len(accuracies), attack
        )


@dataclass(frozen=True)
class Comparison:
    """What is compared. experiment: of every run, apart from what its cell says.

    attacks: each a name, or NAME:SCALE; none is for no attack. partitions, attackers: of the
    scenarios; empty for the experiment's own. worst_seeds: how many seeds the worst case of every
    defence in every scenario has, if that is more than all have. spot_checks: how many cells are
    run again through the services.
    """

    root: Path
    experiment: Experiment
    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str
    partitions: tuple[str, ...] = ()
    attackers: tuple[int, ...] = ()
    worst_seeds: int = 0
    spot_checks: int = 0

    def __post_init__(self) -> None:
        if not (self.attacks and self.defences and self.seeds):
            raise ConfigError("a comparison needs at least one attack, one defence and one seed")
        for defence in self.defences:
            refused = [self._refusal(each, defence) for each in self.scenarios]
            if all(refused):
                raise ConfigError(refused[0])
        names = [cell.name for cell in self.cells()]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"a comparison has each run once; {min(twice)} is asked for twice")

    @classmethod
    def load(cls, root: Path) -> "Comparison":
        path = root / "comparison.json"
        try:
            fields = json.loads(path.read_text("utf-8"))
            return cls(
                root,
                Experiment.from_json(fields["experiment"]),
                tuple(fields["attacks"]),
                tuple(fields["defences"]),
                tuple(fields["seeds"]),
                fields["command"],
                tuple(fields.get("partitions", ())),
                tuple(fields.get("attackers", ())),
                fields.get("worst_seeds", 0),
                fields.get("spot_checks", 0),
            )
        except OSError as unreadable:
            raise ConfigError(f"{root} holds no comparison: {unreadable.strerror}") from None
        except (ValueError, KeyError, TypeError) as damaged:
            raise ConfigError(f"{path} is damaged: {damaged}") from None

    def save(self) -> None:
        """Make the folder. Raises ConfigError if it is not empty."""
        RunFolder(self.root).make()
        write_json(self.root / "comparison.json", asdict(self) | {"root": None})

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        partitions = self.partitions or (self.experiment.partition,)
        attackers = self.attackers or (self.experiment.byzantine,)
        return tuple(Scenario(*each) for each in product(partitions, attackers))

    def cells(self) -> Iterator["Cell"]:
        """All runs but `further` ones. A defence is left out where there are too few clients."""
        for scenario in self.scenarios:
            standing = [each for each in self.defences if self.stands(scenario, each)]
            for attack, defence, seed in product(self.attacks, standing, self.seeds):
                yield Cell(self, scenario, attack, defence, seed)

    def further(self, results: Sequence[Result]) -> list["Cell"]:
        """The seeds that every worst case still lacks, by the results so far.

        They may show that another attack is worse. So there are further ones until the attack of
        the lowest mean has all its seeds.
        """
        left = []
        for scenario, defence in product(self.scenarios, self.defences):
            here = within(results, scenario)
            attack = self._worst_attack(here, defence)
            if attack is not None:
                known = _by_seed(here, attack, defence)
                cells = (Cell(self, scenario, attack, defence, seed) for seed in self._more_seeds)
                left += [cell for cell in cells if cell.seed not in known]
        return left

    @property
    def _more_seeds(self) -> range:
        """Those that only worst cases have."""
        first = self.seeds[-1] + 1
        return range(first, first + self.worst_seeds - len(self.seeds))

    @property
    def runs(self) -> int:
        """How many runs there are, if every worst case is the one that the first seeds show."""
        standing = sum(self.stands(*each) for each in product(self.scenarios, self.defences))
        return standing * (len(self.attacks) * len(self.seeds) + len(self._more_seeds))

    def stands(self, scenario: Scenario, defence: str) -> bool:
        return not self._refusal(scenario, defence)

    def _refusal(self, scenario: Scenario, defence: str) -> str:
        """Why this defence cannot be in this scenario; empty if it can."""
        if defence in MASKINGS:
            return ""
        try:
            given = replace(self.experiment, **asdict(scenario), attack=NO_ATTACK)
            baselines.rule(given, defence)
        except ConfigError as refused:
            others = ", ".join((PLAIN, *MASKINGS))
            return (
                f"a defence is one of {others}, or a composition of rules that can stand: {refused}"
            )
        return ""

    def results(self) -> list[Result]:
        """The results of all runs that are over, in order."""
        found = [cell.result() for cell in self.cells()]
        found += [
            replace(cell, seed=seed).result() for cell in self.cells() for seed in self._more_seeds
        ]
        return [each for each in found if each is not None]

    def is_whole(self, results: Sequence[Result]) -> bool:
        """Whether no run is left."""
        return len(results) >= sum(1 for _ in self.cells()) and not self.further(results)

    def spread(self, results: Sequence[Result], attack: str, defence: str) -> Spread | None:
        """The accuracies of all seeds that are over, in one scenario; None if none is."""
        of_seed = _by_seed(results, attack, defence)
        return Spread.of(list(of_seed.values()), attack) if of_seed else None

    def worst(self, results: Sequence[Result], defence: str) -> Spread | None:
        """The lowest accuracy under any attack, in one scenario; None until all runs are over.

        If the worst attack has seeds that others do not have, it is that attack's. Else it is the
        lowest of every seed.
        """
        worst = self._worst_attack(results, defence)
        if worst is None:
            return None
        its = _by_seed(results, worst, defence)
        if len(its) > len(self.seeds):
            return Spread.of(list(its.values()), worst)
        found = [_by_seed(results, attack, defence) for attack in self._real_attacks]
        return Spread.of([min(each[seed] for each in found) for seed in self.seeds], worst)

    def _worst_attack(self, results: Sequence[Result], defence: str) -> str | None:
        """The attack with the lowest mean; None until all runs are over."""
        found = {attack: _by_seed(results, attack, defence) for attack in self._real_attacks}
        if not all(of_seed.keys() >= {*self.seeds} for of_seed in found.values()):
            return None
        return min(found, key=lambda attack: statistics.fmean(found[attack].values()))

    @property
    def _real_attacks(self) -> list[str]:
        return [each for each in self.attacks if each != NO_ATTACK] or list(self.attacks)


def within(results: Sequence[Result], scenario: Scenario) -> list[Result]:
    """The results of one scenario."""
    return [each for each in results if each.scenario == scenario]


def write_json(path: Path, content: object) -> None:
    files.write(path, [json.dumps(content, indent=1).encode()], mode=_PUBLIC)


def _by_seed(results: Sequence[Result], attack: str, defence: str) -> dict[int, float]:
    """Accuracies, by seed. A model that has run away is worth 0."""
    return {
        each.seed: each.accuracy or 0.0
        for each in results
        if (each.attack, each.defence) == (attack, defence)
    }


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    comparison: Comparison
    scenario: Scenario
    attack: str
    defence: str
    seed: int

    def __post_init__(self) -> None:
        _ = self.experiment  # Raises ConfigError.

    @property
    def name(self) -> str:
        """What its folder is called."""
        text = f"{self.attack}-{self.defence}-seed-{self.seed}"
        if self._one_of_several:
            text = f"{self.scenario.partition}-{self.scenario.byzantine}-{text}"
        return re.sub(r"[^\w.+=]+", "-", text)

    def __str__(self) -> str:
        where = f" ({self.scenario})" if self._one_of_several else ""
        several = len(self.comparison.seeds) > 1 or self.comparison.worst_seeds > 1
        return f"{self.attack} on {self.defence}{where}" + f" (seed {self.seed})" * several

    @property
    def _one_of_several(self) -> bool:
        return len(self.comparison.scenarios) > 1

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.comparison.root / "cells" / self.name)

    @property
    def in_the_clear(self) -> bool:
        return self.defence not in MASKINGS

    @cached_property
    def experiment(self) -> Experiment:
        attack, scale = _attack(self.attack)
        of_all = self.comparison.experiment
        return replace(
            of_all,
            **asdict(self.scenario),
            attack=attack,
            attack_scale=of_all.attack_scale if scale is None else scale,
            masking="exact" if self.in_the_clear else self.defence,
            seed=self.seed,
        )

    @property
    def done(self) -> int:
        return len(read(self.folder.root))

    def result(self) -> Result | None:
        """None if the run is not over."""
        rows = read(self.folder.root)
        return self._result(rows) if len(rows) == self.experiment.rounds else None

    def _result(self, rows: Sequence[RoundMetrics]) -> Result:
        experiment = self.experiment
        return Result(
            partition=self.scenario.partition,
            byzantine=self.scenario.byzantine,
            attack=self.attack,
            scale=experiment.scale,
            defence=self.defence,
            seed=self.seed,
            accuracy=rows[-1].accuracy,
            attack_success=rows[-1].attack_success,
            selected=sum(row.byzantine_selected for row in rows),
            sent=len(experiment.attackers) * len(rows),
            attackers_share=_mean([row.attackers_share for row in rows]),
            failed=sum(bool(row.failure) for row in rows),
            aggregate_s=_mean([_aggregating(row) for row in rows]),
            seconds=round(sum(row.wall_s or 0.0 for row in rows), 2),
            accuracies={row.round: row.accuracy for row in rows if row.accuracy is not None},
        )


def _aggregating(row: RoundMetrics) -> float | None:
    found = [row.stages_s[stage] for stage in _AGGREGATING if stage in row.stages_s]
    return sum(found) if found else None


def _attack(text: str) -> tuple[str, float | None]:
    """Read NAME or NAME:SCALE."""
    name, colon, scale = text.partition(":")
    if not colon:
        return name, None
    try:
        return name, float(scale)
    except ValueError:
        raise ConfigError(
            f"an attack is a name, or one and its scale, such as ipm:1; got {text!r}"
        ) from None


def _mean(figures: Sequence[float | None]) -> float | None:
    known = [each for each in figures if each is not None]
    return round(statistics.fmean(known), 4) if known else None
