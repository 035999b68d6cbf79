import re
from importlib import resources
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from ostraka_lab.report import drawing as axis_style
from ostraka_lab.report.drawing import WIDTH, drawn, rectangles


def paint(figure):
    axes = figure.subplots()
    axes.plot([1, 2, 3], [0.1, 0.5, 0.3], marker="o", label="costs $5 <i> & $6")
    rectangles(axes, [(1, 0, 1, 0.1), (2.5, 0, 0.5, 0.2)], colour="#112233", label="boxes")
    axis_style.legend_above(figure)


def draw(prefix="a.", label="A plot"):
    return drawn(paint, height=2.0, label=label, prefix=prefix)


@pytest.fixture(scope="module")
def root():
    return ElementTree.fromstring(draw())


def test_it_is_well_formed_and_says_what_it_shows(root):
    assert root.tag == "svg"
    assert root.get("role") == "img"
    assert root.get("aria-label") == "A plot"
    assert root.get("viewBox") == f"0 0 {WIDTH * 72:g} 144"


def test_a_label_is_escaped():
    label = 'a "quoted" <b> & c'
    assert ElementTree.fromstring(draw(label=label)).get("aria-label") == label


def test_text_stays_text_even_if_it_looks_like_a_formula(root):
    assert "costs $5 <i> & $6" in {node.text for node in root.iter("text")}


def test_nothing_in_it_holds_for_the_rest_of_the_page(root):
    tags = {node.tag for node in root.iter()}
    assert tags <= {"svg", "g", "path", "defs", "clipPath", "rect", "use", "text"}
    assert not [node for node in root.iter() if "font-family" in node.get("style", "")]


def test_two_of_them_share_no_id_and_every_reference_is_met():
    first, second = draw("a."), draw("b.")
    ids = [set(re.findall(r' id="([^"]+)"', each)) for each in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for each, own in zip((first, second), ids, strict=True):
        referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', each))
        assert referred == own


def test_it_refers_to_nothing_else():
    assert not re.search(r"https?:|url\((?!#)|xlink|src=", draw())


def test_it_is_the_same_every_time_whatever_the_users_settings_are():
    first = draw()
    with mpl.rc_context(
        {"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red", "axes.xmargin": 0.4}
    ):
        assert draw() == first
        assert mpl.rcParams["font.size"] == 30


def test_boxes_of_one_colour_are_one_path(root):
    boxes = [node for node in root.iter("path") if "#112233" in node.get("style", "")]
    assert [node.get("d", "").count("M") for node in boxes if "clip-path" in node.attrib] == [2]


def test_no_number_is_longer_than_it_can_be_seen():
    assert not re.search(r'(?:\sd|\sx|\sy|width|height|transform)="[^"]*\d\.\d{3}', draw())


TICKS = {
    (1, 15): [1, 2, 4, 6, 8, 10, 12, 14],
    (1, 30): [1, 5, 10, 15, 20, 25, 30],
    (1, 200): [1, 50, 100, 150, 200],
    (1, 3): [1, 2, 3],
    (1, 1): [1],
    (0, 99): [0, 20, 40, 60, 80],
}


@pytest.mark.parametrize("ends", TICKS)
def test_whole_numbers_stay_between_their_ends(ends):
    seen = []

    def look(figure):
        axes = figure.subplots()
        axis_style.whole_numbers(axes.xaxis, *ends)
        seen.extend(axes.get_xticks().tolist())

    drawn(look, height=1.0, label="", prefix="")
    assert seen == TICKS[ends]


def test_powers_of_ten_are_written_as_people_write_them():
    written = [axis_style.power_of_ten(each) for each in (0.001, 1.0, 1000.0, 1e6, 1e-12)]
    assert written == ["0.001", "1", "1000", "10⁶", "10⁻¹²"]


def test_a_legend_is_read_from_left_to_right():
    def many(figure):
        axes = figure.subplots()
        for number in range(9):
            axes.plot([0, 1], [0, number], label=f"the number {number}")
        axis_style.legend_above(figure)

    root = ElementTree.fromstring(drawn(many, height=3.0, label="", prefix=""))
    entries = [
        (float(node.get("y", 0)), float(node.get("x", 0)), node.text)
        for node in root.iter("text")
        if (node.text or "").startswith("the number")
    ]
    assert [text for _, _, text in sorted(entries)] == [f"the number {n}" for n in range(9)]
    assert max(x for _, x, _ in entries) < 0.8 * WIDTH * 72


def test_every_colour_has_one_in_the_dark():
    css = resources.files("ostraka_lab.report").joinpath("page.css").read_text("utf-8")
    (dark,) = re.findall(r"prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", css, re.DOTALL)
    assert set(axis_style.PROPERTIES.values()) <= set(re.findall(r"(--[a-z-]+):", dark))


def test_colours_are_properties_of_the_page_and_others_stay(root):
    styles = " ".join(node.get("style", "") for node in root.iter())
    found = set(re.findall(r"var\((--[a-z-]+), (#[0-9a-f]{6})\)", styles))
    assert ("--ink", axis_style.INK) in found
    assert found <= {(name, colour) for colour, name in axis_style.PROPERTIES.items()}
    assert "fill: #112233" in styles


def test_shades_are_stronger_for_more_and_can_be_written_on():
    def cells(figure):
        axis_style.shaded(figure.subplots(), [((x, 0, 1, 1), x / 4) for x in range(5)])

    text = drawn(cells, height=1.0, label="", prefix="")
    deep = re.escape(f"var(--plot-deep, {axis_style.DEEP})")
    opacities = re.findall(rf"fill: {deep}(?:; opacity: ([\d.]+))?", text)
    assert [float(each or 1) for each in opacities] == [0.07, 0.3, 0.54, 0.77, 1.0]
    assert [axis_style.ink_on(x / 4) for x in range(5)] == [axis_style.INK] * 3 + [
        axis_style.PAPER
    ] * 2
