"""Runs the same seeds under several defences, over a list of attacks.

comparison.json     what is compared
results.json        the results
cells/              a run's folder for every pair of an attack and a defence
"""

import json
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
from ostraka_lab.children import Child, Children
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import RunFolder
from ostraka_lab.metrics import Metrics, RoundMetrics, read

Tell: TypeAlias = Callable[[str, int, int], None]
"""tell(what, done, of): what is going on, and how many runs are over."""

_POLL_S = 0.5
_PUBLIC = 0o644


@dataclass(frozen=True)
class Result:
    """One attack on one defence.

    accuracy: after the last round. selected: the number of the attackers' updates that were
    averaged, out of `sent`. accuracies: of all rounds that were evaluated, by round.
    """

    attack: str
    scale: float
    defence: str
    accuracy: float | None
    attack_success: float | None
    selected: int
    sent: int
    seconds: float
    accuracies: dict[int, float]


@dataclass(frozen=True)
class Comparison:
    """What is compared. experiment: of every run, apart from its attack and its masking."""

    root: Path
    experiment: Experiment
    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    command: str

    def __post_init__(self) -> None:
        if not (self.attacks and self.defences):
            raise ConfigError("a comparison needs at least one attack and one defence")
        _ = list(self.cells())

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
                yield Cell(self, attack, defence)

    def results(self) -> list[Result]:
        """The results of all runs that are over, in order."""
        return [cell.result() for cell in self.cells() if cell.over]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    comparison: Comparison
    attack: str
    defence: str

    def __post_init__(self) -> None:
        _ = self.experiment  # Raises ConfigError.

    @property
    def name(self) -> str:
        return f"{self.attack}-{self.defence}"

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.comparison.root / "cells" / self.name)

    @property
    def in_the_clear(self) -> bool:
        return self.defence not in MASKINGS

    @cached_property
    def experiment(self) -> Experiment:
        given = replace(self.comparison.experiment, attack=self.attack)
        if not self.in_the_clear:
            return replace(given, masking=self.defence)
        baselines.rule(given, self.defence)  # Raises ConfigError.
        return replace(given, masking="exact")

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
            accuracy=rows[-1].accuracy,
            attack_success=rows[-1].attack_success,
            selected=sum(row.byzantine_selected for row in rows),
            sent=len(experiment.attackers) * len(rows),
            seconds=round(sum(row.wall_s or 0.0 for row in rows), 2),
            accuracies={row.round: row.accuracy for row in rows if row.accuracy is not None},
        )


def run(comparison: Comparison, *, jobs: int = 2, tell: Tell) -> Generator[Result]:
    """Run what is left: first in the clear, `jobs` runs at a time, then Ostraka. Yields results."""
    left = [cell for cell in comparison.cells() if not cell.over]
    clear = [cell for cell in left if cell.in_the_clear]
    for cell in _in_the_clear(comparison, clear, jobs, tell):
        yield _finished(comparison, cell)
    for cell in left:
        if not cell.in_the_clear:
            _over_services(comparison, cell, tell)
            yield _finished(comparison, cell)


def _finished(comparison: Comparison, cell: Cell) -> Result:
    rows = [asdict(result) for result in comparison.results()]
    described = {"command": comparison.command, "results": rows}
    text = json.dumps(described, indent=1).encode()
    files.write(comparison.root / "results.json", [text], mode=_PUBLIC)
    return cell.result()


def _over_services(comparison: Comparison, cell: Cell, tell: Tell) -> None:
    if not cell.folder.experiment_file.exists():
        over_services.found_run(cell.folder, cell.experiment, command=comparison.command)

    counts = _counts(comparison)

    def tell_of_cell(what: str, done: int, of: int) -> None:
        tell(f"{cell.attack} on {cell.defence}, {what}", *counts)

    with closing(over_services.run(cell.folder, tell=tell_of_cell)) as rounds:
        for _ in rounds:
            pass


def _in_the_clear(
    comparison: Comparison, cells: Sequence[Cell], jobs: int, tell: Tell
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
            names = ", ".join(f"{each.cell.attack} on {each.cell.defence}" for each in running)
            tell(f"in the clear: {names}", *_counts(comparison))
            time.sleep(_POLL_S)


@dataclass(eq=False)
class _Running:
    cell: Cell
    child: Child
    metrics: Metrics

    @classmethod
    def start(cls, cell: Cell, children: Children) -> "_Running":
        folder = cell.folder
        done = cell.done if cell.experiment.resumes_in_the_clear else 0
        folder.root.mkdir(parents=True, exist_ok=True)
        folder.save(cell.experiment)
        arguments = (str(folder.root), cell.defence, str(done))
        child = children.start(cell.name, "ostraka_lab.baselines", *arguments, serves=False)
        return cls(cell, child, Metrics(folder.root, first=done + 1))

    def listen(self) -> None:
        for event in self.child.events():
            if event.get("event") == "ClearRoundDone":
                self.metrics.write(self._row(event))

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


def _counts(comparison: Comparison) -> tuple[int, int]:
    cells = list(comparison.cells())
    return sum(cell.over for cell in cells), len(cells)
