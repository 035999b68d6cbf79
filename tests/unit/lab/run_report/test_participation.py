"""The heat map says what became of every update."""

import re
from itertools import count, pairwise
from xml.etree import ElementTree

import pytest

from ostraka_lab.run_report import participation, run_record

SELECTED, DROPPED, REJECTED, ABSENT, WRONG = "#b5d6ea", "#e69f00", "#cc79a7", "#98a4ae", "#1c2733"


def cells(plot):
    """How many cells of each colour there are: only they are cut to the axes."""
    (svg,) = re.findall(r"<svg.*</svg>", plot.html(count(1)), re.DOTALL)
    paths = [
        node
        for node in ElementTree.fromstring(svg).iter("path")
        if "clip-path" in node.attrib and "fill: none" not in node.get("style", "")
    ]
    return {
        re.findall(r"fill: var\(--[a-z-]+, (#\w+)\)", node.attrib["style"])[0]: node.attrib[
            "d"
        ].count("M")
        for node in paths
    }


def test_a_cell_for_every_update(fabricate):
    folder = fabricate(absent={2: range(4, 9)}, rejected={7: "why"})
    found = cells(participation.plot(run_record.load(folder)))
    rounds = run_record.load(folder).rounds
    assert found[ABSENT] == 5
    assert found[REJECTED] == 15
    assert found[SELECTED] == sum(len(row.selected) for row in rounds)
    assert found[DROPPED] == sum(len(row.dropped) for row in rounds)
    assert sum(found.values()) == 12 * 15
    assert WRONG not in found


def test_a_selected_attacker_stands_out(fabricate):
    run = run_record.load(fabricate(slips=0.5))
    found = cells(participation.plot(run))
    assert found[WRONG] == run.byzantine_selected > 0


def test_cells_of_a_long_run_flow_together(fabricate):
    run = run_record.load(fabricate(rounds=100, absent={9: range(30, 61)}))
    found = cells(participation.plot(run))
    assert found[ABSENT] == 1
    assert found[DROPPED] == 3


def test_rejections_are_summed_up(fabricate):
    folder = fabricate(rejected={7: "bad", 2: "worse"}, absent={7: range(5, 7)})
    table = participation.rejections(run_record.load(folder))
    assert table is not None
    assert table.rows == [("2", "worse", "1 to 15"), ("7 (attacker)", "bad", "1 to 4, 7 to 15")]


LABELS = {
    "few clients": (12, (3, 7), list(range(1, 13))),
    "more": (30, (2, 29), [2, 5, 10, 15, 20, 25, 29]),
    "many": (64, (2, 5, 6, 41), [2, 5, 6, 10, 20, 30, 41, 50, 60]),
}


@pytest.mark.parametrize("what", LABELS)
def test_every_attacker_is_labelled_and_no_labels_touch(what):
    rows, attackers, expected = LABELS[what]
    assert participation._labelled(rows, attackers) == expected


def test_labels_of_very_many_attackers_are_thinned():
    labels = participation._labelled(300, tuple(range(100, 140)))
    assert min(b - a for a, b in pairwise(labels)) >= 4
