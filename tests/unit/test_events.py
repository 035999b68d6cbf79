"""What an operator sees of a round, and what not."""

import dataclasses
from typing import get_args

import numpy as np

from ostraka import events, run_round
from ostraka.errors import Rejection

ROWS = np.random.default_rng(0).normal(size=(9, 40)).astype(np.float32)
SAFE = {
    *("client", "reason", "why", "clients", "workers", "worker", "what"),
    *("number", "participants", "kept", "note", "arrived", "missing", "quorum", "extensions_left"),
    *("address", "evidence", "code_id", "sealing_key", "next_round", "deadline_s", "seconds"),
    *("measure_s", "average_s", "hold_s", "confirm_s", "publish_s", "silent"),
    *("revision", "revoked", "connected", "needed", "places", "shard", "lead", "retry_s"),
}


def test_a_round_tells_who_was_out_and_that_it_is_over():
    rows = ROWS.copy()
    rows[[1, 4], 3] = np.nan, np.inf
    result = run_round(rows, f=3, rule="multi-krum")
    assert result.events == (
        events.AttemptStarted(7, ("worker-1", "worker-2")),
        events.ClientRejected("client-1", Rejection.BAD_NORM),
        events.ClientRejected("client-4", Rejection.BAD_NORM),
        events.RoundPublished(number=1, participants=7, kept=6),
    )


def test_an_attempt_inside_has_no_workers():
    first, last = run_round(ROWS, f=2, rule="multi-krum", distances="inside").events
    assert first == events.AttemptStarted(9, ())
    assert last == events.RoundPublished(1, 9, 7)


def test_what_the_receipt_notes_of_its_rule_is_told():
    done = run_round(ROWS, f=2, rule="mda", masking="none")
    assert done.receipt.note
    assert done.events[-1] == events.RoundPublished(1, 9, 7, done.receipt.note)


def test_no_event_has_room_for_what_must_not_be_seen():
    """A new field is a decision: add it here once it is clear that an operator may read it."""
    fields = {field.name for kind in get_args(events.Event) for field in dataclasses.fields(kind)}
    assert fields == SAFE
