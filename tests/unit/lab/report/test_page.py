"""Pages: what they hold, how they escape text, and that they run and fetch nothing."""

import re
from html.parser import HTMLParser
from itertools import count

import pytest

from ostraka_lab.report import (
    Block,
    Code,
    Column,
    Folded,
    Grid,
    Html,
    KeyFigure,
    Notice,
    Page,
    Paragraph,
    Plot,
    Section,
    Stack,
    Table,
    element,
    markup,
    render,
    void,
    write_page,
)

NASTY = '</style><script src="x">alert("&")</script>'
ESCAPED = "&lt;/style&gt;&lt;script src=&quot;x&quot;&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;"


def line(figure):
    figure.subplots().plot([0, 1], [0, 1], marker="o")


PLOT = Plot("A line", "It goes up.", line, height=1.5)
TABLE = Table((Column("Name"), Column("size", number=True)), [("a", "1"), ("b", "2")], "Two things")


def example(**changes):
    parts = {
        "title": "A title",
        "lead": "The whole story.",
        "figures": [KeyFigure("Speed", "3 s", "yesterday: 4 s", "good")],
        "notices": [Notice("Beware.", "Of the dog.")],
        "sections": [
            Section("First part", [Paragraph("Some text."), Grid([PLOT, TABLE, PLOT])]),
            Section("First part", [Code("ls -l"), Folded("More", [Stack([TABLE])])]),
        ],
        "footer": "The end.",
    }
    return Page(**(parts | changes))


class Balance(HTMLParser):
    """Fails where an element is closed that is not open. Counts elements."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text():
    return render(example())


def parsed(text):
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser


def test_it_is_well_formed_and_ids_are_unique(text):
    found = parsed(text)
    assert found.seen.count("svg") == 2
    assert found.seen.count("table") == 2
    assert len(set(found.ids)) == len(found.ids)
    assert {"first-part", "first-part-1"} <= set(found.ids)


def test_everything_said_is_there(text):
    for said in ("A title", "The whole story.", "3 s", "yesterday: 4 s", "Beware.", "Of the dog."):
        assert said in text
    for said in ("Some text.", "It goes up.", "Two things", "ls -l", "More", "The end."):
        assert said in text


def test_it_runs_no_script_and_fetches_nothing(text):
    policy = "default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in text
    assert not re.search(r"<script|https?:|\ssrc=|@import|url\((?!#)|<link|<img", text)


BLOCKS: dict[str, Block] = {
    "a paragraph": Paragraph(NASTY),
    "a notice": Notice(NASTY, NASTY),
    "code": Code(NASTY),
    "a table": Table((Column(NASTY),), [(NASTY,)], NASTY),
    "a plot": Plot(NASTY, NASTY, line),
    "what is folded": Folded(NASTY, []),
    "a key figure": KeyFigure(NASTY, NASTY, NASTY),
}


@pytest.mark.parametrize("what", BLOCKS)
def test_text_cannot_become_markup_in(what):
    written = BLOCKS[what].html(count(1))
    assert "<script" not in written
    assert "alert(" in written


def test_text_cannot_become_markup_around_them():
    written = render(example(title=NASTY, lead=NASTY, kind=NASTY, footer=NASTY, sections=[]))
    assert "<script" not in written
    assert written.count(ESCAPED) == 5


def test_a_row_that_does_not_fit_its_columns_is_refused():
    with pytest.raises(ValueError, match="zip"):
        Table((Column("one"),), [("a", "b")]).html(count(1))


def test_numbers_are_set_apart(text):
    assert '<th scope="col" class="number">size</th>' in text
    assert '<td class="number">1</td>' in text
    assert "<td>a</td>" in text


def test_an_empty_page_has_no_empty_parts():
    written = render(Page("t", "l", []))
    assert "<dl" not in written
    assert "<footer" not in written
    parsed(written)


def test_the_same_page_is_the_same_text(text):
    assert render(example()) == text


def test_it_is_written_as_a_whole(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("an older one")
    write_page(Page("t", "l", []), path)
    assert path.read_text("utf-8") == render(Page("t", "l", []))
    assert list(tmp_path.iterdir()) == [path]


NASTY_MARKUP = '<b onclick="x">&\''


def test_text_is_escaped():
    assert element("p", NASTY_MARKUP) == "<p>&lt;b onclick=&quot;x&quot;&gt;&amp;&#x27;</p>"


def test_markup_is_not_escaped_again():
    inner = element("b", "a & b")
    assert element("p", inner, " & c") == "<p><b>a &amp; b</b> &amp; c</p>"


def test_a_slice_of_markup_is_text_again():
    assert markup(Html("<b>")[:2]) == "&lt;b"


def test_attributes_are_escaped_and_named_as_in_html():
    opened = void("meta", http_equiv='"quoted"', class_="a", lang=None)
    assert opened == '<meta http-equiv="&quot;quoted&quot;" class="a">'


def test_a_table_is_scrolled_by_keys_and_has_a_name():
    box = '<div class="table" tabindex="0" role="group" aria-label="Table: Two things">'
    assert render(example()).count(box) == 2
