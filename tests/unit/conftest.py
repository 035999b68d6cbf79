"""A demo without its processes: the same clients, in rounds that are played in this one."""

from collections.abc import Iterator

import numpy as np
import pytest

from ostraka.demo import task
from ostraka.demo.review import DemoRound, Published, Review
from ostraka.demo.settings import Demo
from ostraka.round import run_round


def play(demo: Demo) -> Iterator[DemoRound]:
    review, model = Review(demo), task.first_model(demo)
    for number in range(1, demo.rounds + 1):
        result = run_round(
            task.updates(demo, number, model),
            f=demo.byzantine,
            masking=demo.masking,
            distances=demo.distances,
        )
        before, model = model, (model + result.aggregate).astype(np.float32)
        yield review.judge(
            Published(
                number=number,
                before=before,
                after=model,
                selected=tuple(row + 1 for row in result.selected),
                rejected={row + 1: reason for row, reason in result.rejected.items()},
                workers=() if demo.masking == "none" else ("worker-1", "worker-2"),
                simulated=True,
            )
        )


@pytest.fixture
def play_demo():
    return play
