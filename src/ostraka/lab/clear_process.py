"""What a process in the clear runs: the same participants, and a server that sees everything.

python -m ostraka.lab.clear_process RUN DEFENCE DONE
"""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ostraka import files, logs
from ostraka.errors import OstrakaError
from ostraka.lab.clear import MULTI_KRUM, PLAIN, Clear, Rule, multi_krum, plain_average
from ostraka.lab.evaluation import UNJUDGED, Judge
from ostraka.lab.experiment import Experiment
from ostraka.lab.folder import RunFolder
from ostraka.lab.names import find
from ostraka.lab.participant import Task

_LOG = logging.getLogger("ostraka.lab.clear")


@dataclass(frozen=True)
class ClearRoundDone:
    """How a defence in the clear stands after a round. selected: the numbers of clients."""

    round: int
    selected: tuple[int, ...]
    seconds: float
    accuracy: float | None
    loss: float | None
    attack_success: float | None


def main() -> int:
    run, defence, done = sys.argv[1:]
    logs.setup(json=True)
    torch.set_num_threads(1)
    try:
        aggregate(RunFolder(Path(run)), defence, int(done))
    except OstrakaError as error:
        _LOG.error(str(error))
        return 1
    return 0


def aggregate(folder: RunFolder, defence: str, done: int) -> None:
    """All rounds after so many."""
    task = Task.load(folder.load()[0])
    clear, judge = Clear(task, rule(task.experiment, defence)), Judge(task)
    if done:
        clear.model = np.fromfile(_state(folder, defence, done), "<f4")
    for each in clear.rounds(after=done):
        # The model first: a round that is on record without it could not be gone on from.
        files.write(_state(folder, defence, each.number), [each.model.data])
        judged = task.experiment.evaluates(each.number)
        scores = judge.scores(each.model) if judged else UNJUDGED
        logs.event(_LOG, ClearRoundDone(each.number, each.selected, each.seconds, **scores))
        _state(folder, defence, each.number - 2).unlink(missing_ok=True)


def rule(experiment: Experiment, defence: str) -> Rule:
    """Raises ConfigError for a defence that there is not."""
    krum = multi_krum(experiment.byzantine, experiment.k)
    return find("defence", defence, {PLAIN: plain_average, MULTI_KRUM: krum})


def _state(folder: RunFolder, defence: str, number: int) -> Path:
    return folder.root / f"{defence}-{number}.f32"


if __name__ == "__main__":
    sys.exit(main())
