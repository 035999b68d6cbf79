"""The page: what is said first, the key figures, and the sections."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count
from pathlib import Path

from ostraka import files
from ostraka_lab.report.blocks import Block, Html, KeyFigure, Notice, element, void

# A browser holds the page to its promise: nothing is fetched, and no script runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MODE = 0o644


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """lead: the whole story in two or three sentences. kind: what sort of page it is."""

    title: str
    lead: str
    sections: Sequence[Section]
    figures: Sequence[KeyFigure] = ()
    notices: Sequence[Notice] = ()
    kind: str = "Ostraka"
    footer: str = ""


def render(page: Page) -> str:
    """The same page gives the same text."""
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


def write(page: Page, path: Path) -> None:
    """The file is there as a whole or not at all. Raises OSError."""
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
    """An id for each section, made of its title."""
    anchors: list[str] = []
    for section in sections:
        words = "-".join(re.findall(r"[a-z0-9]+", section.title.lower())) or "section"
        again = sum(anchor == words for anchor in anchors)
        anchors.append(f"{words}-{len(anchors)}" if again else words)
    return anchors
