"""Runs the cells of a comparison that are left: in the clear on all cores, then the services.

A process in the clear takes some cells, one after the other, and loads its libraries and data once.
Where one fails, its cell is left out and told of at the end, and the others go on.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from ostraka.errors import ServiceError
from ostraka_lab import run as over_services
from ostraka_lab.baselines import AGGREGATE
from ostraka_lab.children import Child, Children
from ostraka_lab.compare import Cell, Comparison, Result, checks, write_json
from ostraka_lab.metrics import Metrics, RoundMetrics

Tell: TypeAlias = Callable[[str, int, int], None]
"""tell(what, done, of): what is going on, and how many runs are over."""

_POLL_S = 0.2
_BATCH = 24  # cells that a process takes at a time


def run(comparison: Comparison, *, jobs: int = 2, tell: Tell) -> Generator[Result]:
    """Run what is left, `jobs` runs in the clear at a time, and then the spot checks.

    Yields results. Raises ServiceError if a run has failed, or a check.
    """
    runs = _Runs(comparison, jobs, tell)
    yield from runs.all_of(comparison.cells())
    while not runs.failed and (left := comparison.further(runs.results)):
        yield from runs.all_of(left)
    if runs.failed:
        raise ServiceError("\n".join(f"{cell}: {why}" for cell, why in runs.failed))
    checks.run(comparison, tell=runs.tell)


@dataclass
class _Runs:
    comparison: Comparison
    jobs: int
    told: Tell
    failed: list[tuple[Cell, ServiceError]] = field(default_factory=list)
    _results: dict[str, Result] = field(default_factory=dict)

    def tell(self, what: str) -> None:
        done = len(self._results)
        self.told(what, done, max(done, self.comparison.runs))

    @property
    def results(self) -> list[Result]:
        """Of all runs that are over, in an order that does not depend on who was first."""
        return [self._results[name] for name in sorted(self._results)]

    def all_of(self, cells: Iterable[Cell]) -> Iterator[Result]:
        """Run those that are not over. results.json has the results of all."""
        left = list[Cell]()
        for cell in cells:
            if (known := cell.result()) is None:
                left.append(cell)
            else:
                self._results[cell.name] = known
        self.tell("starting")
        for cell in self._in_the_clear([each for each in left if each.in_the_clear]):
            yield self._finished(cell)
        for cell in left:
            if not cell.in_the_clear:
                self._over_services(cell)
                yield self._finished(cell)

    def _finished(self, cell: Cell) -> Result:
        result = cell.result()
        if result is None:
            raise ServiceError(f"{cell}: its record in {cell.folder.root} is not whole")
        self._results[cell.name] = result
        described = {
            "command": self.comparison.command,
            "results": [asdict(each) for each in self.results],
        }
        write_json(self.comparison.root / "results.json", described)
        return result

    def _over_services(self, cell: Cell) -> None:
        if not cell.folder.experiment_file.exists():
            over_services.found_run(cell.folder, cell.experiment, command=self.comparison.command)

        def tell_of_cell(what: str, done: int, of: int) -> None:
            self.tell(f"{cell}, {what}")

        with closing(over_services.run(cell.folder, tell=tell_of_cell)) as rounds:
            for _ in rounds:
                pass

    def _in_the_clear(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Run these in `jobs` processes."""
        waiting, running, started = list(cells), list[_Running](), 0
        with Children(self.comparison.root / "logs") as children:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    some = max(1, min(_BATCH, len(waiting) // self.jobs))
                    taken, waiting = waiting[:some], waiting[some:]
                    started += 1
                    running.append(_Running.start(taken, children, f"clear-{started}"))
                for each in running:
                    ended = each.child.process.poll() is not None
                    yield from each.listen()
                    if ended:
                        waiting += self._left_by(each)
                running = [each for each in running if not each.ended]
                self.tell(f"in the clear: {', '.join(map(str, running))}")
                time.sleep(_POLL_S)

    def _left_by(self, ended: "_Running") -> list[Cell]:
        """What a process that is over has not run, without the cell that it failed in."""
        ended.ended = True
        ended.close()
        if not ended.cells:
            return []
        how = ended.child.failure() or "ended early"
        self.failed.append((ended.cells[0], ended.child.failed(how)))
        return ended.cells[1:]


@dataclass(eq=False)
class _Running:
    """A process in the clear. cells: that it has not finished; it is at the first of them."""

    cells: list[Cell]
    child: Child
    done: int
    metrics: Metrics | None = None
    ended: bool = False

    def __str__(self) -> str:
        if not self.cells:
            return "ending"
        cell = self.cells[0]
        return f"{cell}, round {self.done} of {cell.experiment.rounds}"

    @classmethod
    def start(cls, cells: Sequence[Cell], children: Children, name: str) -> "_Running":
        arguments = [word for cell in cells for word in _prepared(cell)]
        child = children.start(name, "ostraka_lab.baselines", *arguments, serves=False, spare=True)
        return cls(list(cells), child, _begun(cells[0]))

    def listen(self) -> Iterator[Cell]:
        """Write down what it has done. Yields the cells that it has finished."""
        for event in self.child.events():
            if event.get("event") != "ClearRoundDone":
                continue
            cell, self.done = self.cells[0], event["round"]
            if self.metrics is None:
                self.metrics = Metrics(cell.folder.root, first=self.done)
            self.metrics.write(_row(cell, event))
            if self.done == cell.experiment.rounds:
                self.close()
                self.cells.pop(0)
                self.done = _begun(self.cells[0]) if self.cells else 0
                yield cell

    def close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        self.metrics = None


def _begun(cell: Cell) -> int:
    """After which round it begins."""
    return cell.done if cell.experiment.resumes_in_the_clear else 0


def _prepared(cell: Cell) -> tuple[str, str, str]:
    """Make its folder. Gives what its process has to know."""
    cell.folder.root.mkdir(parents=True, exist_ok=True)
    cell.folder.save(cell.experiment, defence=cell.defence)
    return str(cell.folder.root), cell.defence, str(_begun(cell))


def _row(cell: Cell, event: dict[str, Any]) -> RoundMetrics:
    selected, experiment = set(event["selected"]), cell.experiment
    return RoundMetrics.from_json(
        event
        | {
            "byzantine_selected": len(selected & {*experiment.attackers}),
            "dropped": sorted({*experiment.numbers} - selected),
            "stages_s": {AGGREGATE: event["aggregate_s"]},
            "wall_s": event["seconds"],
        }
    )
