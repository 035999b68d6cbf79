"""Spot checks: some cells of a comparison again, through the services, for their first rounds.

A run in the clear stands for Ostraka as long as both come to the same model in each round. Which
cells are checked is drawn from the comparison's seed, so that a second run checks the same ones.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from ostraka.arrays import Float32
from ostraka.errors import ServiceError
from ostraka_lab import baselines
from ostraka_lab import run as over_services
from ostraka_lab.baselines import PLAIN, Clear
from ostraka_lab.compare import Cell, Comparison, write_json
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import Records, RunFolder
from ostraka_lab.task import load_task

# The largest difference, as a part of the model's length. Masks round inner products, so weights
# differ by some millionths; one update that is left out or kept wrongly makes some thousandths.
ALLOWED = 1e-5
_ROUNDS = 2
_PURPOSE = 100  # of the random numbers, beside those of the experiment


@dataclass(frozen=True)
class Check:
    """How far the model of the services was off that in the clear, in parts of its length."""

    cell: str
    rounds: int
    difference: float

    @property
    def equal(self) -> bool:
        return self.difference <= ALLOWED


def usual(cells: int) -> int:
    """The default number of checks for this number of cells."""
    return cells // 50


def chosen(comparison: Comparison) -> list[Cell]:
    """The cells that are checked: of rules in the clear, each at most once."""
    cells = [each for each in comparison.cells() if each.in_the_clear and each.defence != PLAIN]
    drawn = comparison.experiment.stream(_PURPOSE).permutation(len(cells))
    return [cells[at] for at in drawn[: comparison.spot_checks]]


def load(comparison: Comparison) -> list[Check]:
    """Those that are over."""
    path = comparison.root / "checks.json"
    return [Check(**each) for each in json.loads(path.read_text())] if path.exists() else []


def run(comparison: Comparison, *, tell: Callable[[str], None]) -> None:
    """Run those that are left. Raises ServiceError if one of all of them differs."""
    done = load(comparison)
    for cell in chosen(comparison):
        if str(cell) not in {each.cell for each in done}:
            tell(f"spot check: {cell}")
            done.append(_checked(cell))
            write_json(comparison.root / "checks.json", [asdict(each) for each in done])
    if differing := [each for each in done if not each.equal]:
        said = "".join(f"\n  {each.cell}: {each.difference:.1e}" for each in differing)
        raise ServiceError(
            "the services came to another model than the run in the clear, by more than "
            f"{ALLOWED:g} of its length:{said}\n"
            "Delete checks.json in the comparison's folder to check again"
        )


def _checked(cell: Cell) -> Check:
    """Compare round by round: each in the clear begins with the model that the services came to.

    Otherwise training would multiply what masks round, by hundreds with a convolutional network.
    """
    experiment = _experiment(cell)
    clear = Clear(load_task(experiment), baselines.rule(experiment, cell.defence))
    difference = 0.0
    for number, published in enumerate(_over_services(cell, experiment), 1):
        before = clear.model
        with _one_thread():
            failed = clear.round(number).failure
        difference = max(difference, _apart(published, clear.model))
        clear.model = published
        if not failed:
            clear.last = np.subtract(published, before, dtype=np.float64)
    return Check(str(cell), experiment.rounds, difference)


def _apart(published: Float32, clear: Float32) -> float:
    length = np.linalg.norm(clear.astype(np.float64))
    off = np.linalg.norm(published - clear.astype(np.float64))
    # NaN is no equality: a model that has run away has no length.
    return float(off / length) if np.isfinite(off) and length else float("inf")


def _experiment(cell: Cell) -> Experiment:
    """The first rounds of a cell, with its defence as the federation's rule."""
    names, bracket, options = cell.defence.partition("(")
    *pre, name = names.split("+")
    rounds = min(_ROUNDS, cell.experiment.rounds)
    return replace(
        cell.experiment,
        rule=name + bracket + options,
        pre=tuple(pre),
        rounds=rounds,
        evaluate_every=rounds,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """As clients do: with more threads, sums have another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _over_services(cell: Cell, experiment: Experiment) -> Iterator[Float32]:
    """The model (d,) after each round. A check that was interrupted begins anew."""
    folder = RunFolder(cell.comparison.root / "checks" / cell.name)
    shutil.rmtree(folder.root, ignore_errors=True)
    over_services.found_run(folder, experiment, command=cell.comparison.command)
    with closing(over_services.run(folder)) as rounds:
        for each in rounds:
            yield Records(folder.rounds).model(each.round)
