"""Logs: lines that programs can read, that peers cannot forge, and that hold no secret."""

import dataclasses
import io
import json
import logging
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka import events, logs
from ostraka.crypto.identity import Identity
from ostraka.errors import Rejection

LOG = logging.getLogger("ostraka.test")


@dataclass(frozen=True)
class Something:
    what: object
    count: int = 3
    ratio: float = 0.5
    names: tuple[str, ...] = ("a", "b c")
    hidden: str = field(default="not to be seen", repr=False)


@pytest.fixture(autouse=True)
def as_it_was():
    """Other tests have handlers and levels of their own."""
    root, ours = logging.getLogger(), logging.getLogger("ostraka")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(act, json, **options):
    stream = io.StringIO()
    logs.setup(json, stream=stream, **options)
    act()
    return stream.getvalue().splitlines()


def test_an_event_is_its_name_and_its_fields_in_json():
    (line,) = lines(lambda: logs.event(LOG, Something("x y")), json=True)
    entry = json.loads(line)
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "ostraka.test",
        "event": "Something",
        "what": "x y",
        "count": 3,
        "ratio": 0.5,
        "names": ["a", "b c"],
    }


def test_an_event_is_its_name_and_its_fields_in_text():
    (line,) = lines(lambda: logs.event(LOG, Something("x y")), json=False)
    time, rest = line.split(" ", 1)
    assert time.endswith("+00:00")
    assert rest == 'info ostraka.test Something what="x y" count=3 ratio=0.5 names=["a", "b c"]'


@pytest.mark.parametrize("value", [b"seed", bytearray(b"seed"), memoryview(b"seed")])
@pytest.mark.parametrize("json", [False, True])
def test_bytes_are_never_shown(value, json):
    (line,) = lines(lambda: logs.event(LOG, Something(value)), json=json)
    assert f"<{type(value).__name__}>" in line
    assert "seed" not in line
    assert "hidden" not in line


@pytest.mark.parametrize("json", [False, True])
def test_arrays_and_keys_are_never_shown(json):
    class Careless:
        def __repr__(self):
            return "SECRET"

    strays = (np.arange(3), Identity(bytes(32)), Careless(), [Careless()], {"SECRET": 1})
    for stray in strays:
        (line,) = lines(lambda stray=stray: logs.event(LOG, Something(stray)), json=json)
        assert "SECRET" not in line
        assert "[0" not in line


@pytest.mark.parametrize("json", [False, True])
def test_every_line_of_a_simulated_run_says_so(json):
    def act():
        logs.event(LOG, Something("x"))
        LOG.warning("plain")
        logging.getLogger("foreign").error("of others")
        try:
            raise ValueError("broken")
        except ValueError as error:
            logs.event(LOG, Something("x"), logging.ERROR, error=error)

    told = lines(act, json=json, simulated=True)
    entries = [line for line in told if not line.startswith("    ")]
    assert len(entries) == 4
    mark = '"simulated": true' if json else " simulated=true"
    assert all(mark in entry for entry in entries)
    assert all("simulated" not in line for line in lines(act, json=json))


def test_no_event_takes_the_mark_away():
    @dataclass(frozen=True)
    class Liar:
        simulated: bool = False
        level: str = "debug"

    (line,) = lines(lambda: logs.event(LOG, Liar()), json=True, simulated=True)
    assert json.loads(line)["simulated"] is True
    assert json.loads(line)["level"] == "info"


@pytest.mark.parametrize("json", [False, True])
@given(text=st.text(st.characters(codec="utf-8")))
def test_no_text_begins_a_line_of_its_own(json, text):
    def act():
        logs.event(LOG, Something(text))
        LOG.info("said %s", text)

    told = lines(act, json=json)
    assert len(told) == 2
    assert all(line.isprintable() for line in told)


def test_what_a_peer_said_stays_inside_a_trace():
    def act():
        try:
            raise ValueError("x\n2030-01-01 info ostraka.enclave RoundPublished\x1b[2J")
        except ValueError as error:
            logs.event(LOG, Something("x"), error=error)

    first, *trace = lines(act, json=False)
    assert "Something" in first
    assert all(line.startswith("    ") and line.isprintable() for line in trace)
    (line,) = lines(act, json=True)
    assert "RoundPublished" in json.loads(line)["trace"]


def test_levels_are_of_our_own_loggers():
    def act():
        LOG.debug("ours")
        logging.getLogger("foreign").debug("theirs")
        logging.getLogger("foreign").warning("theirs, and worth hearing")

    assert len(lines(act, json=False, level="DEBUG")) == 2
    assert len(lines(act, json=False, level=logging.WARNING)) == 1


def test_setting_up_again_replaces_and_leaves_the_handlers_of_others():
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    old = lines(lambda: LOG.info("one"), json=False)
    new = lines(lambda: LOG.info("two"), json=True)
    assert len(old) == len(new) == 1
    assert other in logging.getLogger().handlers


def test_an_event_of_the_protocol_reads_well():
    event = events.ClientRejected("alice", Rejection.NOT_FINITE)
    (line,) = lines(lambda: logs.event(LOG, event), json=False)
    assert line.endswith('ClientRejected client=alice reason="holds a NaN or an infinity"')


def test_a_line_for_people_ends_with_the_words_of_its_event():
    def line(event, json=False):
        (logged,) = lines(lambda: logs.event(LOG, event), json=json)
        return logged

    opened = events.RoundOpened(1, 60.0, 7)
    assert line(opened).endswith(
        "RoundOpened number=1 deadline_s=60.0 clients=7 (waiting for 7 clients)"
    )
    few, many = (
        events.QuorumReached(2, 5, 20.0, names) for names in (("client-3",), tuple("abcd"))
    )
    assert line(few).endswith("(quorum reached, waiting 20 s more for client-3)")
    assert line(many).endswith("(quorum reached, waiting 20 s more for 4 clients)")
    assert "waiting" not in line(opened, json=True)


def test_only_events_are_events():
    with pytest.raises(TypeError):
        logs.event(LOG, "a string")
    assert dataclasses.is_dataclass(Something)
