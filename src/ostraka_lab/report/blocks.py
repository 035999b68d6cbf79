"""Markup from text, where text can never turn into markup."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, Protocol

from ostraka_lab.report.drawing import Paint, drawn


class Html(str):
    """Markup. Every other string is text, and is escaped where it meets markup."""

    __slots__ = ()


def markup(*parts: str) -> Html:
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def element(name: str, /, *children: str, **attributes: str | None) -> Html:
    """class_="x" is the attribute class, aria_label="x" is aria-label, and None is left out."""
    return Html(f"{_opening(name, attributes)}{markup(*children)}</{name}>")


def void(name: str, /, **attributes: str | None) -> Html:
    """An element that has no content, such as meta."""
    return _opening(name, attributes)


def _opening(name: str, attributes: dict[str, str | None]) -> Html:
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{pairs}>")


Tone = Literal["plain", "good", "bad", "caution"]


class Block(Protocol):
    """A part of a section. numbers: gives every plot of the page its own."""

    def html(self, numbers: Iterator[int]) -> Html: ...


@dataclass(frozen=True)
class Paragraph:
    """text: plain, or Html."""

    text: str

    def html(self, numbers: Iterator[int]) -> Html:
        return element("p", self.text)


@dataclass(frozen=True)
class Notice:
    """What nobody should miss."""

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
    """number: its cells are numbers, and end on one line."""

    heading: str
    number: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text, or of Html. caption: what they are. A wide table scrolls in its own box."""

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
        return element("div", table, class_="table", tabindex="0")

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
    """A picture with its title and what to see in it. height: inches, beside style.WIDTH."""

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
    """What only some readers want to see: behind a line that opens it."""

    title: str
    blocks: Sequence[Block]

    def html(self, numbers: Iterator[int]) -> Html:
        inside = markup(*(each.html(numbers) for each in self.blocks))
        return element("details", element("summary", self.title), inside)


@dataclass(frozen=True)
class KeyFigure:
    """One figure that a reader should take away. note: what it is compared with."""

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
