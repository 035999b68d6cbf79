"""What the recorder writes down is what the demo reads."""

import logging

import numpy as np
import pytest

from ostraka.demo.records import Books, Recorder, recorder
from ostraka.demo.settings import Demo
from ostraka.demo.task import attackers
from ostraka.errors import Rejection
from ostraka.round import run_round


class Captured(logging.Handler):
    def __init__(self):
        super().__init__()
        self.events = []

    def emit(self, record):
        self.events.append({"event": record.getMessage(), **vars(record)["ostraka_fields"]})


@pytest.fixture
def log():
    logger = logging.Logger("of a client")
    logger.addHandler(Captured())
    return logger


def test_a_round_is_there_with_its_receipt_and_both_models(tmp_path, log):
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 4)).astype(np.float32)
    writing, books = Recorder(tmp_path, log), Books(tmp_path)
    writing.model(0, before)
    writing.receipt(receipt_of_round_one())
    writing.model(1, after)
    *first, last = log.handlers[0].events
    for event in first:
        books.note(event)
    assert not books.has(1)
    books.note(last)
    assert books.has(1)
    assert not books.has(2)
    published = books.published(1, ("worker-1",))
    assert np.array_equal(published.before, before)
    assert np.array_equal(published.after, after)
    assert published.rejected == {2: Rejection.BAD_NORM}
    assert published.workers == ("worker-1",)
    assert not published.simulated


def receipt_of_round_one():
    """Of a round in one process, which names its clients from 0."""
    updates = np.ones((5, 4), np.float32)
    updates[2] = np.nan
    return run_round(updates, f=1, masking="none").receipt


def test_the_recorder_is_honest():
    for seed in range(20):
        demo = Demo(seed=seed)
        assert recorder(demo) not in attackers(demo)
