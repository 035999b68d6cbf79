"""The report as a browser shows it, on a desk and on a telephone."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the path"),
]

DARK = "--blink-settings=preferredColorScheme=0"
NAMES = ("digits", "backdoor", "gaussian", "unfinished", "absent")
WIDTHS = (1280, 400)

# The page forbids scripts, so this runs in a copy that does not.
MEASURE = """<script>
for (const each of document.querySelectorAll("details")) each.open = true;
const sizes = [...document.querySelectorAll("svg text")].map(
  (text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a || Infinity);
const boxes = [...document.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect());
const outside = [...document.querySelectorAll("svg")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 2 || box.right > frame.right + 2;
  }).map((text) => text.textContent);
});
const parts = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((each) => each / 255);
const light = (colour) => parts(colour).map(
  (x) => x <= 0.04 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4).reduce(
  (sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0.05);
const card = getComputedStyle(document.querySelector("figure")).backgroundColor;
// What has the card's own colour is written on a coloured cell.
const inks = [...document.querySelectorAll("svg text")].map((text) => getComputedStyle(text).fill);
const contrasts = inks.filter((ink) => ink !== card).map(
  (ink) => Math.max(light(ink) / light(card), light(card) / light(ink)));
const tell = () => parent.seen.push({
  name: frameElement.name,
  width: innerWidth,
  scroll: document.documentElement.scrollWidth,
  smallest: Math.min(...sizes),
  plots: boxes.map((box) => [box.left, box.width, box.height]),
  outside,
  card: light(card),
  faintest: Math.min(...contrasts),
  tables: [...document.querySelectorAll(".table")].map((box) => [
    box.scrollWidth > box.clientWidth,
    getComputedStyle(box.querySelector(".sideways")).display !== "none"]),
});
// A box that scrolls has its timeline from the next frame on.
requestAnimationFrame(() => requestAnimationFrame(() => {
  tell();
  parent.document.title = JSON.stringify(parent.seen);
}));
</script>"""


def opened(path, profile, *options):
    """The document as it stands, and what the browser complained of."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--v=0",
        f"--user-data-dir={profile}",
        "--hide-scrollbars",
        "--window-size=1600,1000",
        "--virtual-time-budget=2000",
        *options,
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def framed(folder, frames, *options):
    """A page of these frames: a browser starts slowly, and no window is as narrow as a phone."""
    around = folder / "around.html"
    frame = '<iframe style="border: 0" height="900" {}></iframe>'
    around.write_text(
        '<meta charset="utf-8"><title></title><script>var seen = []</script>'
        + "".join(map(frame.format, frames)),
        "utf-8",
    )
    return opened(around, folder / "profile", *options)


def measuring(path, name, width):
    page = re.sub(r"<meta http-equiv[^>]*>", "", path.read_text("utf-8"))
    inside = escape(page.replace("</body>", f"{MEASURE}</body>"))
    return f'name="{name}" width="{width}" srcdoc="{inside}"'


def seen_in(folder, reported, *options):
    frames = [measuring(reported(name), name, width) for name in NAMES for width in WIDTHS]
    dom, _ = framed(folder, frames, *options)
    title = re.findall(r"<title>(.*?)</title>", dom, re.DOTALL)[0]
    return {(each["name"], each["width"]): each for each in json.loads(unescape(title))}


@pytest.fixture(scope="module")
def measured(reported, tmp_path_factory):
    """What there is to see of each report at each width."""
    return seen_in(tmp_path_factory.mktemp("measured"), reported)


def test_plots_follow_the_dark_and_can_be_read_in_it(reported, measured, tmp_path):
    dark = seen_in(tmp_path, reported, DARK)
    assert dark.keys() == measured.keys()
    assert all(each["card"] > 1 for each in measured.values())
    assert all(each["card"] < 0.1 for each in dark.values())
    assert min(each["faintest"] for each in (*dark.values(), *measured.values())) > 3.5


def test_a_table_says_that_it_scrolls_and_no_other_does(measured):
    tables = [table for each in measured.values() for table in each["tables"]]
    assert all(scrolls == says for scrolls, says in tables)
    assert {scrolls for scrolls, _ in tables} == {True, False}


def test_the_browser_has_no_complaint(reported, tmp_path):
    _, complaints = framed(tmp_path, [f'src="{reported(name).as_uri()}"' for name in NAMES])
    assert complaints == []


def test_a_script_would_be_a_complaint(reported, tmp_path):
    page = tmp_path / "page.html"
    text = reported("digits").read_text("utf-8")
    page.write_text(text.replace("</body>", "<script>1</script></body>"), "utf-8")
    _, complaints = framed(tmp_path, [f'src="{page.as_uri()}"'])
    assert complaints


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_read_without_scrolling_sideways(reported, measured, name, width):
    seen = measured[name, width]
    assert len(seen["plots"]) == reported(name).read_text("utf-8").count("</svg>")
    assert seen["scroll"] <= width
    assert seen["smallest"] >= 8
    assert seen["outside"] == []
    columns = {round(left) for left, _, _ in seen["plots"]}
    assert len(columns) == (1 if width == 400 else 2)
    assert all(wide > 300 and high > 100 for _, wide, high in seen["plots"])
