"""A matplotlib figure as markup that can stand in a page with others of its kind.

Matplotlib writes a file of its own: with a style sheet that would hold for the whole page, with ids
that the next figure uses again, and with its own idea of fonts. Here these go, and numbers are cut
to a hundredth of a point.
"""

import io
import re
from collections.abc import Callable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib.figure import Figure

from ostraka.report.html import Html
from ostraka.report.style import WIDTH, plotting

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"

_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_NO_ROTATION = re.compile(r"rotate\(-?0(\.0)? [^)]*\)")
_FONT_FAMILY = re.compile(r"\s*font-family: [^;]*;?")
_NUMBERS = ("d", "x", "y", "width", "height", "transform")

Paint = Callable[[Figure], None]
"""Draws on an empty figure."""


def drawn(paint: Paint, *, height: float, label: str, prefix: str) -> Html:
    """label: what the picture shows, for whoever does not see it. prefix: of its ids."""
    root = ElementTree.fromstring(_saved(paint, height))  # noqa: S314 (matplotlib wrote it just now)
    for parent in list(root.iter()):
        _drop_foreign(parent)
    _rename_ids(root, prefix)
    for node in root.iter():
        _slim(node)
    _dress(root, label)
    return Html(ElementTree.tostring(root, encoding="unicode"))


def _saved(paint: Paint, height: float) -> bytes:
    out = io.BytesIO()
    with plotting():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _drop_foreign(parent: Element) -> None:
    for child in list(parent):
        if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
            parent.remove(child)


def _rename_ids(root: Element, prefix: str) -> None:
    """Ids that nothing refers to go; the others become this figure's own."""
    used = {each for node in root.iter() for each in _referred(node)}
    for node in root.iter():
        name = node.attrib.pop("id", None)
        if name in used:
            node.set("id", f"{prefix}{name}")
        link = node.attrib.pop(_LINK, None)
        if link is not None:
            node.set("href", f"#{prefix}{link.removeprefix('#')}")
        for key, value in node.attrib.items():
            node.set(key, _REFERENCE.sub(rf"url(#{prefix}\1)", value))


def _referred(node: Element) -> set[str]:
    inside = {name for value in node.attrib.values() for name in _REFERENCE.findall(value)}
    return inside | {node.get(_LINK, "").removeprefix("#")}


def _slim(node: Element) -> None:
    node.tail = None
    if node.tag != f"{_SVG}text":
        node.text = None
    if "style" in node.attrib:
        # Text is in the font of the page.
        node.set("style", _FONT_FAMILY.sub("", node.attrib["style"]))
    for key in _NUMBERS:
        if key in node.attrib:
            node.set(key, _LONG_NUMBER.sub(_rounded, node.attrib[key]).replace(" \n", " ").strip())
    if _NO_ROTATION.fullmatch(node.get("transform", "")):
        del node.attrib["transform"]


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _dress(root: Element, label: str) -> None:
    """The page decides how large it is. Namespaces go, as HTML knows what an svg element is."""
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
    view = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": view,
            "role": "img",
            "aria-label": label,
            "stroke-linejoin": "round",
            "stroke-linecap": "butt",
        }
    )
