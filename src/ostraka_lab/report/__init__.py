"""Pages that explain themselves: key figures, text, tables and plots in a single HTML file.

They hold no script and fetch nothing: a page opens from a disk, from an archive or in a mail, and
can be sent on safely. Text is escaped wherever it meets markup, so that it can never turn into
markup itself.

This file has the page and the blocks that it is made of. `drawing` has plots, as markup, and
`format` writes numbers as people read them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

from ostraka import files
from ostraka_lab.report.drawing import Paint, drawn

Tone = Literal["plain", "good", "bad", "caution"]

# A browser holds the page to its promise: nothing is fetched, and no script runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MODE = 0o644
_SIDEWAYS = "This table is wider than the page: scroll it sideways."


class Html(str):
    """Markup. Every other string is text, and is escaped where it meets markup."""

    __slots__ = ()


def markup(*parts: str) -> Html:
    """Join markup and text, which is escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def element(name: str, /, *children: str, **attributes: str | None) -> Html:
    """Make an element. class_="x" is the attribute class, aria_label="x" is aria-label.

    An attribute that is None is left out.
    """
    return Html(f"{_opening(name, attributes)}{markup(*children)}</{name}>")


def void(name: str, /, **attributes: str | None) -> Html:
    """Make an element that has no content, such as meta."""
    return _opening(name, attributes)


def _opening(name: str, attributes: dict[str, str | None]) -> Html:
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{pairs}>")


class Block(Protocol):
    """A part of a section. numbers: gives every plot of the page a number of its own."""

    def html(self, numbers: Iterator[int]) -> Html: ...


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text, or of Html."""

    text: str

    def html(self, numbers: Iterator[int]) -> Html:
        return element("p", self.text)


@dataclass(frozen=True)
class Notice:
    """What no reader should miss."""

    title: str
    text: str
    tone: Tone = "caution"

    def html(self, numbers: Iterator[int]) -> Html:
        return element(
            "div",
            element("strong", self.title),
            " ",
            self.text,
            class_=f"notice {self.tone}",
            role="note",
        )


@dataclass(frozen=True)
class Code:
    """Text to be copied as it is."""

    text: str

    def html(self, numbers: Iterator[int]) -> Html:
        return element("pre", element("code", self.text))


@dataclass(frozen=True)
class Column:
    """A column of a table. number: its cells are numbers, and end on one line."""

    heading: str
    number: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text, or of Html. caption: what they are.

    A table that is wider than the page scrolls in its own box, which says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def html(self, numbers: Iterator[int]) -> Html:
        table = element(
            "table",
            element("caption", self.caption) if self.caption else Html(),
            element("thead", element("tr", *self._headings())),
            element("tbody", *map(self._row, self.rows)),
        )
        label = f"Table: {self.caption}" if self.caption else "Table"
        hint = element("p", _SIDEWAYS, class_="sideways")
        return element(
            "div", table, hint, class_="table", tabindex="0", role="group", aria_label=label
        )

    def markdown(self) -> str:
        """The same for a document, with its caption above."""
        rule = ["---:" if column.number else "---" for column in self.columns]
        lines = [[column.heading for column in self.columns], rule, *self.rows]
        above = [f"{self.caption}:", ""] if self.caption else []
        return "\n".join([*above, *(f"| {' | '.join(cells)} |" for cells in lines)]) + "\n"

    def _headings(self) -> Iterator[Html]:
        for column in self.columns:
            yield element("th", column.heading, scope="col", class_=_class(column))

    def _row(self, cells: Sequence[str]) -> Html:
        pairs = zip(self.columns, cells, strict=True)
        return element(
            "tr", *(element("td", cell, class_=_class(column)) for column, cell in pairs)
        )


def _class(column: Column) -> str | None:
    return "number" if column.number else None


@dataclass(frozen=True)
class Plot:
    """A picture with its title and what to see in it. height: in inches."""

    title: str
    caption: str
    paint: Paint
    height: float = 2.8

    def html(self, numbers: Iterator[int]) -> Html:
        # No id of another kind has a dot in it.
        prefix = f"plot{next(numbers)}."
        label = f"{self.title}. {self.caption}"
        return element(
            "figure",
            element("h3", self.title),
            Html(drawn(self.paint, height=self.height, label=label, prefix=prefix)),
            element("figcaption", self.caption),
        )


@dataclass(frozen=True)
class Grid:
    """Blocks side by side where there is room, and one below the other where there is not."""

    blocks: Sequence[Block]

    def html(self, numbers: Iterator[int]) -> Html:
        return element("div", *(each.html(numbers) for each in self.blocks), class_="grid")


@dataclass(frozen=True)
class Stack:
    """Blocks one below the other, which a grid keeps together."""

    blocks: Sequence[Block]

    def html(self, numbers: Iterator[int]) -> Html:
        return element("div", *(each.html(numbers) for each in self.blocks))


@dataclass(frozen=True)
class Folded:
    """Blocks that only some readers want to see, behind a line that opens them."""

    title: str
    blocks: Sequence[Block]

    def html(self, numbers: Iterator[int]) -> Html:
        inside = markup(*(each.html(numbers) for each in self.blocks))
        return element("details", element("summary", self.title), inside)


@dataclass(frozen=True)
class KeyFigure:
    """A figure that a reader should take away. note: what it is compared with."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"

    def html(self, numbers: Iterator[int]) -> Html:
        return element(
            "div",
            element("dt", self.label),
            element("dd", element("span", self.value, class_="value")),
            element("dd", self.note, class_="note") if self.note else Html(),
            class_=f"figure {self.tone}",
        )


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page. lead: the whole story in two or three sentences. kind: what sort of page it is."""

    title: str
    lead: str
    sections: Sequence[Section]
    figures: Sequence[KeyFigure] = ()
    notices: Sequence[Notice] = ()
    kind: str = "Ostraka"
    footer: str = ""


def render(page: Page) -> str:
    """Make the HTML of a page. The same page gives the same text."""
    numbers = count(1)
    header = element(
        "header",
        element("p", page.kind, class_="kind"),
        element("h1", page.title),
        element("p", page.lead, class_="lead"),
    )
    figures = element("dl", *(each.html(numbers) for each in page.figures), class_="figures")
    body = element(
        "main",
        header,
        *(notice.html(numbers) for notice in page.notices),
        figures if page.figures else Html(),
        *(
            element(
                "section",
                element("h2", section.title),
                *(block.html(numbers) for block in section.blocks),
                id=anchor,
            )
            for anchor, section in zip(_anchors(page.sections), page.sections, strict=True)
        ),
        element("footer", page.footer) if page.footer else Html(),
    )
    return _document(page.title, body)


def write_page(page: Page, path: Path) -> None:
    """Write a page to a file, which is replaced as a whole or not at all. Raises OSError."""
    files.write(path, [render(page).encode()], mode=_MODE)


def _document(title: str, body: Html) -> str:
    css = resources.files("ostraka_lab.report").joinpath("page.css").read_text("utf-8")
    head = element(
        "head",
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(css)),
    )
    html = element("html", head, element("body", body), lang="en")
    return f"<!DOCTYPE html>\n{html}\n"


def _anchors(sections: Sequence[Section]) -> list[str]:
    """Make an id for each section from its title."""
    anchors: list[str] = []
    for section in sections:
        words = "-".join(re.findall(r"[a-z0-9]+", section.title.lower())) or "section"
        again = sum(anchor == words for anchor in anchors)
        anchors.append(f"{words}-{len(anchors)}" if again else words)
    return anchors
