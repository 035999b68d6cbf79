import json
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from ostraka_lab import run_report
from ostraka_lab.report import Html

EVERY = ("digits", "backdoor", "gaussian", "unfinished", "absent", "weighed")

COMMON = ("Accuracy per round", "Loss per round", "Clients by rounds", "Time per stage")
TITLES = {
    "digits": (*COMMON, "Who holds what", "What one worker can learn of one update"),
    "backdoor": (*COMMON, "Attack success per round", "Who holds what"),
    "gaussian": (*COMMON, "What one worker can learn of one update", "The polar attack"),
    "unfinished": (*COMMON, "What one worker can learn of one update"),
    "absent": COMMON,
    "weighed": COMMON,
}


@pytest.fixture
def _undrawn(monkeypatch):
    """Pictures take long, and not every test looks at them."""
    monkeypatch.setattr("ostraka_lab.report.drawn", lambda *_, **__: Html(""))


@pytest.fixture
def text(reported):
    return lambda name: reported(name).read_text("utf-8")


def pictures(text):
    """The pictures by their titles."""
    found = re.findall(r"<figure><h3>([^<]*)</h3>(<svg.*?</svg>)", text, re.DOTALL)
    return {title: ElementTree.fromstring(svg) for title, svg in found}


@pytest.mark.parametrize("name", EVERY)
def test_every_plot_is_there_and_drawn(text, name):
    found = pictures(text(name))
    assert set(TITLES[name]) <= set(found)
    assert text(name).count("<svg") == len(found)
    for picture in found.values():
        assert len(list(picture.iter("path"))) > 5
        assert any(node.text for node in picture.iter("text"))


@pytest.mark.parametrize("name", EVERY)
def test_it_refers_to_nothing_outside_and_ids_are_unique(text, name):
    page = text(name)
    assert not re.search(r"<script|https?:|\ssrc=|@import|url\((?!#)|<link|<img|xlink", page)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_the_key_figures_are_those_of_the_run(text):
    page = text("digits")
    for said in ("93.4\xa0%", "0 of 45", "0 bits", "SIMULATED enclave."):
        assert said in page
    assert "3 of them attacked (sign-flip\xa0×\xa010)" in page
    assert "9 of 360" in text("backdoor")


def test_a_rule_that_weighs_everybody_singles_nobody_out(text):
    page = text("weighed")
    assert "for 15 rounds under arc+nnm+geometric-median." in page
    assert "gives every update a weight, distant ones little." in page
    assert "Attackers selected" not in page
    assert "attacker selected" not in page
    assert "Dropped: valid" not in page
    assert "Dropped: valid" in text("digits")
    assert "Attackers selected" in text("digits")
    assert "attacker selected" in text("backdoor")


@pytest.mark.usefixtures("_undrawn")
def test_only_a_simulated_enclave_is_called_so(fabricate):
    assert "SIMULATED" not in run_report.write(fabricate(done=1, simulated=False)).read_text(
        "utf-8"
    )


def test_text_from_elsewhere_is_escaped(text):
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text("absent")
    assert "11 (attacker)" in text("absent")


def test_text_from_the_experiment_is_escaped(fabricate):
    nasty = "<script>&$x$"
    page = run_report.write(
        fabricate(done=1, dataset=nasty, attack=nasty, command=nasty)
    ).read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;&amp;$x$") >= 3


def test_an_unfinished_run_says_so(text):
    assert "6 of 15 rounds are on record" in text("unfinished")
    assert "Unfinished." not in text("digits")
    assert "Plain averaging" not in text("unfinished")


LEAKAGE = {
    "digits": ("zero bits", "What any one worker sees", "perfect secrecy"),
    "backdoor": ("folded to 16,384 values",),
    "absent": ("What any 2 workers see together",),
    "unfinished": ("No worker took part",),
    "gaussian": (
        "Gaussian masking leaks.",
        "takes the polar decomposition of all rows",
        "Law 6 (the paper&#x27;s corollary 1; docs/protocol.md lists all laws) bounds",
        "≤ 0.001 bits",
        "0.015 bits",
    ),
}


@pytest.mark.parametrize("name", LEAKAGE)
def test_leakage_is_told_in_words(text, name):
    for said in LEAKAGE[name]:
        assert said in text(name)


def test_the_command_and_the_settings_are_there(text):
    assert "<code>ostraka train --dataset digits --clients 12" in text("digits")
    assert "<td>partition</td><td>iid</td>" in text("digits")
    assert "<td>attackers</td><td>3, 7, 11</td>" in text("digits")


def test_an_accuracy_that_was_measured_now_and_then_is_drawn(fabricate):
    folder = fabricate()
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["round"] % 3:
            row["accuracy"] = row["loss"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "Ostraka ends at 93.4\xa0%" in run_report.write(folder).read_text("utf-8")


@pytest.mark.usefixtures("_undrawn")
def test_a_torn_last_line_is_no_obstacle(fabricate):
    folder = fabricate()
    for name in ("metrics.jsonl", "baseline.jsonl"):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-9])
    assert "14 of 15 rounds are on record" in run_report.write(folder).read_text("utf-8")


def test_a_run_without_a_round_has_a_report(fabricate):
    folder = fabricate()
    for name in ("metrics.jsonl", "baseline.jsonl"):
        (folder / name).unlink()
    page = run_report.write(folder).read_text("utf-8")
    assert "0 of 15 rounds are on record" in page
    assert set(pictures(page)) == {"Who holds what", "What one worker can learn of one update"}


def test_a_run_of_few_words_has_a_report(tmp_path):
    said = {"dataset": "digits", "clients": 5, "rounds": 1, "masking": "exact"}
    (tmp_path / "experiment.json").write_text(json.dumps(said))
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "selected": [1, 2, 3]}\n')
    page = run_report.write(tmp_path).read_text("utf-8")
    assert "not measured" in page
    assert set(pictures(page)) == {"Clients by rounds"}


def test_a_long_run_of_many_clients_stays_small(fabricate):
    folder = fabricate(clients=64, rounds=200, slips=0.1)
    assert run_report.write(folder).stat().st_size < 1_000_000


@pytest.mark.usefixtures("_undrawn")
def test_it_is_written_as_a_whole_into_the_folder(fabricate):
    folder = fabricate(done=1)
    path = run_report.write(folder)
    assert path == folder / "report.html"
    assert not list(folder.glob("*.partial"))


@pytest.mark.slow
def test_it_is_the_same_in_another_process(reported):
    first = reported("absent").read_bytes()
    code = "import sys; from pathlib import Path; from ostraka_lab import run_report; "
    code += "run_report.write(Path(sys.argv[1]))"
    folder = str(reported("absent").parent)
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, folder], check=True, env=environment)
    assert reported("absent").read_bytes() == first
