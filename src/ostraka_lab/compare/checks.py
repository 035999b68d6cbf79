"""Spot checks: some cells of a comparison again, through the services, for their first rounds.

A run in the clear stands for Ostraka as long as both come to the same models. With exact masks they
do so round by round, each from the services' model of before. Over several rounds they need not:
masks round inner products by chance (law 7), and training makes much of little. Where they do not,
the cell runs once more with products that the enclave takes by itself. Nothing is rounded by chance
then, and all rounds in a row must come to the same model. Which cells are checked is drawn from the
comparison's seed, so that a second run checks the same ones.
"""

import json
import shutil
from collections.abc import Callable, Generator
from contextlib import closing
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
from ostraka_lab.folder import Records, RunFolder, client_name
from ostraka_lab.task import load_task

# The largest difference, as a part of the model's length. Masks round inner products, so weights
# differ by some millionths; one update that is left out or kept wrongly makes some thousandths.
ALLOWED = 1e-5
_ROUNDS = 2
# A client that comes late would make another model. Those that have died are noticed anyway.
_DEADLINE_S = 4 * 3600.0
_PURPOSE = 100  # of the random numbers, beside those of the experiment


@dataclass(frozen=True)
class Check:
    """How far the models of the services were off those in the clear, in parts of their length.

    difference: in any one round, from the same model before it. drift: after all rounds in a row.
    unmasked: the same without masks; None if the drift is small, and it was not run. Checks of
    before have neither.
    """

    cell: str
    rounds: int
    difference: float
    drift: float | None = None
    unmasked: float | None = None

    @property
    def equal(self) -> bool:
        in_a_row = self.drift if self.unmasked is None else self.unmasked
        return self.difference <= ALLOWED and (in_a_row is None or in_a_row <= ALLOWED)

    def __str__(self) -> str:
        figures = {"in one round": self.difference, "in a row": self.drift}
        if self.unmasked is not None:
            figures["in a row without masks"] = self.unmasked
        said = ", ".join(f"{each:.1e} {how}" for how, each in figures.items() if each is not None)
        return f"{self.cell}: {said}"


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
        said = "".join(f"\n  {each}" for each in differing)
        raise ServiceError(
            "the services came to another model than the run in the clear, by more than "
            f"{ALLOWED:g} of its length:{said}\n"
            "Delete checks.json in the comparison's folder to check again"
        )


def _checked(cell: Cell) -> Check:
    experiment = _experiment(cell)
    # The services are gone before the clear begins: both at a time may not fit into memory, and an
    # enclave that has finished does not wait for long.
    published = list(_over_services(cell, experiment))
    follower, free = _clear(cell, experiment), _clear(cell, experiment)
    difference = 0.0
    for number, model in enumerate(published, 1):
        difference = max(difference, _followed(follower, number, model))
        _go_on(free, number)
    drift = _apart(published[-1], free.model)
    check = Check(str(cell), experiment.rounds, difference, drift)
    return check if drift <= ALLOWED else replace(check, unmasked=_unmasked(cell, free.model))


def _clear(cell: Cell, experiment: Experiment) -> Clear:
    return Clear(load_task(experiment), baselines.rule(experiment, cell.defence))


def _followed(clear: Clear, number: int, published: Float32) -> float:
    """How far a round in the clear is off that of the services. It goes on with theirs (d,)."""
    _go_on(clear, number)
    difference = _apart(published, clear.model)
    clear.model = published
    return difference


def _unmasked(cell: Cell, expected: Float32) -> float:
    """How far the services come from this model (d,) if the enclave measures by itself."""
    *_, model = _over_services(cell, replace(_experiment(cell), distances="inside"))
    return _apart(model, expected)


def _go_on(clear: Clear, number: int) -> None:
    """Run a round in the clear with one thread, as clients do. More would sum in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clear.round(number)
    finally:
        torch.set_num_threads(threads)


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
        deadline_s=max(_DEADLINE_S, cell.experiment.deadline_s),
    )


def _over_services(cell: Cell, experiment: Experiment) -> Generator[Float32]:
    """The model (d,) after each round. A check that was interrupted begins anew."""
    folder = RunFolder(cell.comparison.root / "checks" / cell.name)
    shutil.rmtree(folder.root, ignore_errors=True)
    over_services.found_run(folder, experiment, command=cell.comparison.command)
    with closing(over_services.run(folder)) as rounds:
        for each in rounds:
            if each.absent:
                late = ", ".join(map(client_name, each.absent))
                raise ServiceError(f"{cell}: no check without {late} in round {each.round}")
            yield Records(folder.rounds).model(each.round)
