"""Markup from text, where text can never turn into markup."""

from html import escape


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
