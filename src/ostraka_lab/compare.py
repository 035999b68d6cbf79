"""Runs the same seeds under several defences, over a list of attacks.

A defence is `plain` averaging or any composition of rules, such as arc+nnm+geometric-median, in the
clear; or Ostraka's services under the experiment's own rule, in one of the maskings.

comparison.json     what is compared
results.json        the results
cells/              a run's folder for every attack, defence and seed
"""

import json
import re
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from ostraka import files
from ostraka.config import MASKINGS
from ostraka.errors import ConfigError
from ostraka_lab import baselines
from ostraka_lab import run as over_services
from ostraka_lab.baselines import PLAIN
from ostraka_lab.children import Child, Children
from ostraka_lab.experiment import NO_ATTACK, Experiment
from ostraka_lab.folder import RunFolder
from ostraka_lab.metrics import Metrics, RoundMetrics, read

Tell: TypeAlias = Callable[[str, int, int], None]
"""tell(what, done, of): what is going on, and how many runs are over."""

_POLL_S = 0.5
_PUBLIC = 0o644


@dataclass(frozen=True)
class Result:
    """One attack on one defence, with one seed.

    accuracy: after the last round. selected: the number of the attackers' updates that had any
    weight, out of `sent`. attackers_share: their part in the aggregates, over all rounds; None
    where nobody can tell: Ostraka publishes no weights, and column-wise rules have none. failed:
    rounds without an aggregate. accuracies: of all rounds that were evaluated, by round.
    """

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
    seconds: float
    accuracies: dict[int, float]


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
    """What is compared. experiment: of every run, apart from its attack, masking and seed.

    attacks: each a name, or NAME:SCALE; none is for no attack.
    """

    root: Path
    experiment: Experiment
    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str

    def __post_init__(self) -> None:
        if not (self.attacks and self.defences and self.seeds):
            raise ConfigError("a comparison needs at least one attack, one defence and one seed")
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
            )
        except OSError as unreadable:
            raise ConfigError(f"{root} holds no comparison: {unreadable.strerror}") from None
        except (ValueError, KeyError, TypeError) as damaged:
            raise ConfigError(f"{path} is damaged: {damaged}") from None

    def save(self) -> None:
        """Make the folder. Raises ConfigError if it is not empty."""
        RunFolder(self.root).make()
        fields = asdict(self) | {"root": None}
        files.write(
            self.root / "comparison.json", [json.dumps(fields, indent=1).encode()], mode=_PUBLIC
        )

    def cells(self) -> Iterator["Cell"]:
        for attack in self.attacks:
            for defence in self.defences:
                for seed in self.seeds:
                    yield Cell(self, attack, defence, seed)

    def results(self) -> list[Result]:
        """The results of all runs that are over, in order."""
        return [cell.result() for cell in self.cells() if cell.over]

    def spread(self, results: Sequence[Result], attack: str, defence: str) -> Spread | None:
        """The accuracies of all seeds that are over; None if none is."""
        of_seed = _by_seed(results, attack, defence)
        return Spread.of(list(of_seed.values()), attack) if of_seed else None

    def worst(self, results: Sequence[Result], defence: str) -> Spread | None:
        """Of every seed, the lowest accuracy under any attack; None until all runs are over."""
        attacks = [each for each in self.attacks if each != NO_ATTACK] or list(self.attacks)
        found = {attack: _by_seed(results, attack, defence) for attack in attacks}
        if any(len(of_seed) < len(self.seeds) for of_seed in found.values()):
            return None
        lowest = [min(of_seed[seed] for of_seed in found.values()) for seed in self.seeds]
        worst = min(attacks, key=lambda attack: statistics.fmean(found[attack].values()))
        return Spread.of(lowest, worst)


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
    attack: str
    defence: str
    seed: int

    def __post_init__(self) -> None:
        _ = self.experiment  # Raises ConfigError.

    @property
    def name(self) -> str:
        """What its folder is called."""
        return re.sub(r"[^\w.+=]+", "-", f"{self.attack}-{self.defence}-seed-{self.seed}")

    def __str__(self) -> str:
        seed = f" (seed {self.seed})" if len(self.comparison.seeds) > 1 else ""
        return f"{self.attack} on {self.defence}{seed}"

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
        given = replace(
            of_all,
            attack=attack,
            attack_scale=of_all.attack_scale if scale is None else scale,
            masking="exact" if self.in_the_clear else self.defence,
            seed=self.seed,
        )
        if self.in_the_clear:
            _require_defence(given, self.defence)
        return given

    @property
    def done(self) -> int:
        return len(read(self.folder.root))

    @property
    def over(self) -> bool:
        return self.done == self.experiment.rounds

    def result(self) -> Result:
        rows, experiment = read(self.folder.root), self.experiment
        return Result(
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
            seconds=round(sum(row.wall_s or 0.0 for row in rows), 2),
            accuracies={row.round: row.accuracy for row in rows if row.accuracy is not None},
        )


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


def _require_defence(experiment: Experiment, defence: str) -> None:
    try:
        baselines.rule(experiment, defence)
    except ConfigError as refused:
        others = ", ".join((PLAIN, *MASKINGS))
        raise ConfigError(
            f"a defence is one of {others}, or a composition of rules that can stand: {refused}"
        ) from None


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return round(statistics.fmean(known), 4) if known else None


def run(comparison: Comparison, *, jobs: int = 2, tell: Tell) -> Generator[Result]:
    """Run what is left: first in the clear, `jobs` runs at a time, then Ostraka. Yields results."""
    cells = list(comparison.cells())
    left = [cell for cell in cells if not cell.over]
    done, of = len(cells) - len(left), len(cells)

    def tell_of(what: str) -> None:
        tell(what, done, of)

    clear = [cell for cell in left if cell.in_the_clear]
    for cell in _in_the_clear(comparison, clear, jobs, tell_of):
        done += 1
        yield _finished(comparison, cell)
    for cell in left:
        if not cell.in_the_clear:
            _over_services(comparison, cell, tell_of)
            done += 1
            yield _finished(comparison, cell)


def _finished(comparison: Comparison, cell: Cell) -> Result:
    rows = [asdict(result) for result in comparison.results()]
    described = {"command": comparison.command, "results": rows}
    text = json.dumps(described, indent=1).encode()
    files.write(comparison.root / "results.json", [text], mode=_PUBLIC)
    return cell.result()


def _over_services(comparison: Comparison, cell: Cell, tell: Callable[[str], None]) -> None:
    if not cell.folder.experiment_file.exists():
        over_services.found_run(cell.folder, cell.experiment, command=comparison.command)

    def tell_of_cell(what: str, done: int, of: int) -> None:
        tell(f"{cell}, {what}")

    with closing(over_services.run(cell.folder, tell=tell_of_cell)) as rounds:
        for _ in rounds:
            pass


def _in_the_clear(
    comparison: Comparison, cells: Sequence[Cell], jobs: int, tell: Callable[[str], None]
) -> Iterator[Cell]:
    """Run these, each in a single process, and at most `jobs` of them at the same time."""
    waiting, running = list(cells), list[_Running]()
    with Children(comparison.root / "logs") as children:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Running.start(waiting.pop(0), children))
            children.require_well()
            for each in running:
                each.listen()
            over = [each for each in running if each.child.process.poll() is not None]
            for each in over:
                each.listen()
                each.metrics.close()
                yield each.cell
            running = [each for each in running if each not in over]
            tell(f"in the clear: {', '.join(map(str, running))}")
            time.sleep(_POLL_S)


@dataclass(eq=False)
class _Running:
    cell: Cell
    child: Child
    metrics: Metrics
    done: int

    def __str__(self) -> str:
        return f"{self.cell}, round {self.done} of {self.cell.experiment.rounds}"

    @classmethod
    def start(cls, cell: Cell, children: Children) -> "_Running":
        folder = cell.folder
        done = cell.done if cell.experiment.resumes_in_the_clear else 0
        folder.root.mkdir(parents=True, exist_ok=True)
        folder.save(cell.experiment, defence=cell.defence)
        arguments = (str(folder.root), cell.defence, str(done))
        child = children.start(cell.name, "ostraka_lab.baselines", *arguments, serves=False)
        return cls(cell, child, Metrics(folder.root, first=done + 1), done)

    def listen(self) -> None:
        for event in self.child.events():
            if event.get("event") == "ClearRoundDone":
                self.metrics.write(self._row(event))
                self.done = event["round"]

    def _row(self, event: dict[str, Any]) -> RoundMetrics:
        experiment = self.cell.experiment
        attackers = set(experiment.attackers) & set(event["selected"])
        return RoundMetrics.from_json(
            event
            | {
                "byzantine_selected": len(attackers),
                "dropped": sorted(set(experiment.numbers) - set(event["selected"])),
                "wall_s": event["seconds"],
            }
        )
