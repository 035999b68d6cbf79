"""What the page shows: in plain words, and never as the markup of who wrote it."""

import json
from dataclasses import replace

import pytest

from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.dashboard import page
from ostraka.dashboard.markup import Markup, el, line, stacked_bars
from ostraka.dashboard.told import Told, Work
from ostraka.dashboard.watching import View
from ostraka.errors import MalformedMessage

CLIENTS = tuple(Member(f"client-{i}", bytes([i]) * 32) for i in range(1, 5))
WORKERS = tuple(Member(f"worker-{i}", bytes([100 + i]) * 32) for i in range(1, 3))
FEDERATION = Federation(Terms(Manifest.flat(10), f=1), CLIENTS, WORKERS, bytes(32), b"i" * 32)
EVIL = "<script>alert(1)</script>\"'&"

SAID = {
    "federation": "hospitals",
    "revision": 1,
    "phase": "collecting",
    "round": 3,
    "rounds": 10,
    "published": 2,
    "deadline_in_s": 61.5,
    "quorum": 4,
    "quorum_reached": False,
    "grace_s": 20.0,
    "arrived": ["client-1"],
    "awaited": ["client-2", "client-4"],
    "confirmed": [],
    "confirmations_missing": None,
    "rejected": {"client-3": "its norm is not the stated one"},
    "workers": ["worker-1"],
    "worker_record": {"worker-1": {"attempts": 4, "lies": 2, "failures": 1}},
    "history": [{"round": 2, "stages_s": {"measure": 0.5, "confirm": 0.1}}],
    "simulated": False,
    "memory_mib": 120,
    "bytes_in": 3 * 2**20,
    "bytes_out": 2**20,
    "started_at": 1.8e9,
}


def view(**changes) -> View:
    told = Told.read(json.dumps(SAID | changes))
    return View(
        "fl:7420",
        federation=FEDERATION,
        told=told,
        until=1000.0,
        work=told.work,
        times=told.times,
        metrics=told.metrics,
        lost="",
    )


def test_an_open_round_says_who_has_come_and_who_is_awaited_and_why():
    drawn = page.parts(view())
    assert drawn["sentence"] == "Round 3 of 10: waiting for client-2, client-4."
    assert 'data-until="1000.0"' in drawn["now"]
    assert "for the quorum of 4; 20 s after the quorum" in drawn["now"]
    assert "update arrived" in drawn["clients"]
    assert "rejected: its norm is not the stated one" in drawn["clients"]
    hurried = page.parts(view(quorum_reached=True))
    assert "quorum reached, waiting for client-2, client-4" in hurried["sentence"]
    assert "awaited, in the time of grace" in hurried["clients"]


def test_confirmations_are_shown_as_they_come():
    voting = {"phase": "confirming", "confirmed": ["client-1"], "awaited": ["client-2"]}
    drawn = page.parts(view(**voting, confirmations_missing=2, rejected={}))
    assert "2 more are needed to publish" in drawn["now"]
    assert "has confirmed" in drawn["clients"]
    assert "awaited to confirm" in drawn["clients"]


def test_a_worker_that_lied_is_named():
    drawn = page.parts(view())["workers"]
    assert "worker-1 returned false numbers" in drawn
    assert "worker-2" in drawn


def test_figures_are_there_only_if_clients_report_them():
    assert page.parts(view())["figures"] == ""
    figures = [{"round": 1, "accuracy": 0.5, "loss": 1.5, "examples": 30.0, "clients": 4}]
    drawn = page.parts(view(metrics=figures))["figures"]
    assert "50.0 %" in drawn
    assert drawn.count("<svg") == 2
    only = page.parts(view(metrics=[{"round": 1, "clients": 4, "loss": 0.0}]))["figures"]
    assert only.count("<svg") == 1


def test_a_simulated_enclave_is_called_that():
    assert "SIMULATED" not in page.parts(view())["notices"]
    assert "SIMULATED" in page.parts(view(simulated=True))["notices"]


def test_a_lost_connection_is_told_and_the_last_state_stays():
    drawn = page.parts(replace(view(), lost="failed to connect"))
    assert "Connection lost" in drawn["notices"]
    assert "failed to connect" in drawn["notices"]
    assert "client-1" in drawn["clients"]


def test_what_could_not_be_verified_stays_shown():
    drawn = page.parts(replace(view(), refusals=("the chain is forked",)))
    assert "Not verified: " in drawn["notices"]
    assert "the chain is forked" in drawn["notices"]


def test_what_others_write_is_text_everywhere():
    strange = view(
        federation=EVIL,
        phase=EVIL,
        rejected={EVIL: EVIL},
        arrived=[EVIL],
        awaited=[EVIL],
        worker_record={EVIL: {"attempts": 1, "lies": 1, "failures": 1}},
        history=[{"round": 1, "stages_s": {EVIL: 1.0, "measure": 1.0}}],
        metrics=[{"round": 1, "accuracy": 0.5, EVIL: 1.0}],
    )
    named = Member("client-1", b"k" * 32)
    object.__setattr__(named, "name", EVIL)
    roster = replace(FEDERATION, clients=(named, *CLIENTS[1:]))
    shown = replace(strange, address=EVIL, federation=roster, lost=EVIL, refusals=(EVIL, "more"))
    text = page.whole(page.parts(shown))
    assert "<script>alert" not in text
    assert "\"'&" not in text
    assert "&lt;script&gt;alert" in text


def test_attributes_are_escaped_and_markup_is_kept():
    assert el("p", Markup("<b>x</b>"), "<", title='"') == '<p title="&quot;"><b>x</b>&lt;</p>'
    assert el("p", None, False, hidden=True, lang=None) == "<p hidden></p>"


BAD = {
    "no JSON": "{",
    "a list": "[]",
    "a field that is missing": json.dumps({k: v for k, v in SAID.items() if k != "phase"}),
    "numbers, as a stranger is shown": json.dumps(SAID | {"awaited": 2, "arrived": 1}),
    "a name that is none": json.dumps(SAID | {"arrived": [1]}),
    "a count below nothing": json.dumps(SAID | {"round": -1}),
    "a time that is none": json.dumps(SAID | {"started_at": float("nan")}),
    "a record that is none": json.dumps(SAID | {"worker_record": {"w": 3}}),
    "a count that is no number of the machine's": json.dumps(SAID | {"bytes_in": 10**400}),
    "a time that is none either": json.dumps(SAID | {"grace_s": 10**400}),
    "a start before all time": json.dumps(SAID | {"started_at": -1e300}),
    "stages whose sum is infinite": json.dumps(
        SAID | {"history": [{"round": 1, "stages_s": {"measure": 1e308, "average": 1e308}}]}
    ),
    "a metric that is none": json.dumps(SAID | {"metrics": [{"round": 1, "loss": "low"}]}),
    "half a character": json.dumps(SAID | {"phase": "\ud800"}),
    "a list in a list, on and on": "[" * 100_000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_status_that_is_none_is_refused(text):
    with pytest.raises(MalformedMessage):
        Told.read(text)


@pytest.mark.parametrize(
    ("most", "top"),
    [(0.0, "1"), (5e-324, "1"), (0.3, "0.3"), (7.0, "8"), (0.026, "0.03"), (1234.0, "1500")],
)
def test_an_axis_ends_at_a_round_number(most, top):
    assert f">{top} s</text>" in stacked_bars("t", {1: {"a": most}}, ("a",))


@pytest.mark.parametrize("extreme", [0, 5e-324, 1e-9, 1e15])
def test_the_largest_and_the_least_that_a_service_may_tell_can_be_drawn(extreme):
    """Else a lying host stops the thread that verifies, and the page shows what was true before."""
    stages = {"measure": extreme, "average": extreme}
    drawn = page.parts(
        view(
            history=[{"round": number, "stages_s": stages} for number in (1, 2)],
            metrics=[{"round": 1, "loss": extreme, "accuracy": extreme, "examples": extreme}],
            started_at=extreme,
            deadline_in_s=extreme,
            grace_s=extreme,
            bytes_in=int(extreme),
        )
    )
    assert page.whole(drawn).encode()


def test_a_round_of_many_times_the_usual_length_flattens_no_other():
    rounds = {1: {"a": 60.0}, **{number: {"a": 0.5} for number in range(2, 8)}}
    drawn = stacked_bars("t", rounds, ("a",))
    assert "60 s" in drawn
    assert ">2 s</text>" in drawn


def test_a_line_may_have_one_point_or_none_above_zero():
    assert "<circle" in line("t", {1: 0.0})
    assert "<circle" in line("t", {1: 2.0}, percent=True)


def test_work_is_added_up():
    assert Work(1, 2, 3) + Work(1, 0, 1) == Work(2, 2, 4)
