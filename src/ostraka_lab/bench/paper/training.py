"""One client's local epoch: `python -m ostraka_lab.bench.paper.training NETWORK CLIENTS STEPS`.

The lab's own trainer on pictures of CIFAR-10's shape. They are random: what they show does not
change what a step costs. Some steps are timed, after one that is not, and an epoch is so many of
them as a client's part of 50,000 pictures has batches.
"""

import math
import sys
import time

import numpy as np

from ostraka_lab import models
from ostraka_lab.bench.paper.networks import CLASSES, SHAPE
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.training import Recipe, Trainer

PICTURES, BATCH = 50_000, 32
_MEAN = _STD = (0.5, 0.5, 0.5)


def epoch(network: str, clients: int, steps: int, begin: Begin) -> Figures:
    begin(f"training {network}", 0, 1)
    batches = math.ceil(PICTURES / clients / BATCH)
    model = models.build(network, shape=SHAPE, classes=CLASSES, seed=0)
    start = models.vector(model)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (BATCH * steps, *SHAPE), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    seconds = []
    for recipe in (Recipe(steps=1, batch=BATCH), Recipe(steps=steps, batch=BATCH)):
        trainer = Trainer(model, images, labels, _MEAN, _STD, recipe)
        begun = time.perf_counter()
        trainer.update(start, seed=(0,))
        seconds.append(time.perf_counter() - begun)
    return {"step_s": seconds[1] / steps, "batches": batches, "steps_timed": steps}


if __name__ == "__main__":
    asked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.exit(report(lambda begin: epoch(*asked, begin)))
