"""Areas: how fields become bytes, and every message."""

import ast
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import ostraka
from ostraka.carried.messages import ASK
from ostraka.encoding import Length, decode, digest, encode, pack
from wire_vectors.notation import Seals, Vector, fixed, identity, sha256, vector
from wire_vectors.played import Round

SOURCE = Path(ostraka.__file__).parent

_LABEL = re.compile(r"ostraka/\S*v(?:\d|%d)")
# Bytes that are written out: of a field, and of a message that is made up or of the round.
_LONG, _LONGEST = 600, (600, 1700)


@dataclass(frozen=True)
class _Inner:
    name: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class _Example:
    LABEL: ClassVar[bytes] = b"example/v1"

    data: bytes
    text: str
    truth: bool
    whole: int
    real: float
    absent: int | None
    present: int | None
    inner: _Inner
    several: tuple[_Inner, ...]


def encodings(played: Round, seals: Seals) -> list[Vector]:
    inner = _Inner("\u00e9", (1, 258))
    example = _Example(b"\x00\xff", "text", True, 258, 0.5, None, 0, inner, (inner, inner))
    lists: tuple[tuple[bytes, ...], ...] = ((), (b"",), (b"a", b"bc"))
    return [
        vector(
            f"a list of {len(each)}",
            "Bytes: each field behind its length, in 8 bytes, the highest first",
            {"fields": each},
            {"packed": pack(*each)},
        )
        for each in lists
    ] + [
        vector(
            "a message of every type of field",
            "Bytes: label and fields, in order; None is no bytes at all",
            {"label": example.LABEL.decode(), "fields": example},
            {"encoded": encode(example), "digest": digest(example)},
        )
    ]


def labels() -> set[str]:
    """Every versioned label that the source has."""
    values = (
        node.value
        for tree in _labelled().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
    texts = (each if isinstance(each, str) else each.decode("latin-1") for each in values)
    return {text for text in texts if _LABEL.match(text)}


def kinds() -> list[type[Any]]:
    """Every class of messages that the source has."""
    return [
        getattr(importlib.import_module(module), node.name)
        for module, tree in _labelled().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(map(_is_label, node.body))
    ]


@cache
def _labelled() -> dict[str, ast.Module]:
    """The modules that have a label, parsed."""
    texts = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    return {
        _module(path): ast.parse(text)
        for path, text in texts.items()
        if "ostraka/" in text and "_pb2" not in path.stem
    }


def _is_label(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "LABEL"
        and node.value is not None
    )


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def all_messages(played: Round, seals: Seals) -> list[Vector]:
    """Every message: one of the round where it has one, else one whose fields are made up."""
    known = _known(played)
    ordered = sorted(kinds(), key=lambda kind: kind.LABEL)
    found = {kind: known.get(kind) or _made_up(kind, known) for kind in ordered}
    asked = vector("ASK", "Bytes: a label alone", {}, {"encoded": ASK})
    return [
        *(_message(each, found, _LONGEST[kind in known]) for kind, each in found.items()),
        asked,
    ]


def _message(message: Any, found: Mapping[type[Any], Any], longest: int) -> Vector:
    """What it nests is given by its own vector. longest: bytes that are written out."""
    kind = type(message)
    own = {other: each for other, each in found.items() if other is not kind}
    given = {each.name: _see(getattr(message, each.name), own) for each in fields(kind)}
    encoded = message.to_bytes() if hasattr(message, "to_bytes") else encode(message)
    if not hasattr(message, "to_bytes") and decode(kind, encoded) != message:
        raise SystemExit(f"{kind.__name__} does not decode to itself")
    written = {"encoded": encoded} if len(encoded) <= longest else {"length": len(encoded)}
    return vector(
        kind.__name__,
        "Bytes: the encoding of a message; if it has a signature, that is the last field",
        {"label": kind.LABEL.decode(), "fields": given},
        {**written, "sha256": sha256(encoded)},
    )


def _see(value: Any, found: Mapping[type[Any], Any]) -> Any:
    """A field, or where it is to be seen."""
    if type(value) in found and found[type(value)] == value:
        return {"see": type(value).__name__}
    if isinstance(value, tuple):
        return [_see(each, found) for each in value]
    if is_dataclass(value):
        return {each.name: _see(getattr(value, each.name), found) for each in fields(value)}
    if isinstance(value, bytes) and len(value) > _LONG:
        return {"length": len(value), "sha256": sha256(value)}
    return value


def _known(played: Round) -> dict[type[Any], Any]:
    """The messages of the round: of client-1, worker-1 and the worker at infinity."""
    first, line, pending = played.uploads[0], played.lines[0], played.proposed.pending
    found = (
        played.federation.terms.manifest,
        played.federation.terms,
        played.federation,
        played.charter,
        played.offer,
        first.submitted.sealed,
        first.header,
        first.submitted.sealed.tiles[0],
        line.offer,
        line.accept,
        line.tiles[0],
        played.lines[-1].seed,
        line.answer,
        pending,
        pending.receipt,
        pending.proposal,
        played.votes[0],
        played.certified.certificate,
        played.certified,
    )
    return {type(each): each for each in found}


def _made_up(kind: Any, known: Mapping[type[Any], Any]) -> Any:
    """A message of this kind, signed by the authority if it has a signature."""
    hints = get_type_hints(kind, include_extras=True)
    values = {
        each.name: _value(f"{kind.__name__}.{each.name}", hints[each.name], known)
        for each in fields(kind)
    }
    while True:
        try:
            message = kind(**values)
            break
        except ValueError:  # It cannot have everything at once: without the last of what repeats.
            values[[name for name, each in values.items() if each and type(each) is tuple][-1]] = ()
    return identity("authority").sign(message) if "signature" in values else message


def _value(name: str, kind: Any, known: Mapping[type[Any], Any]) -> Any:
    if kind in known:
        return known[kind]
    if is_dataclass(kind):
        return _made_up(kind, known)
    if isinstance(kind, UnionType):
        return _value(name, next(each for each in get_args(kind) if each is not NoneType), known)
    if get_origin(kind) is tuple:
        return (_value(name, get_args(kind)[0], known),)
    if get_origin(kind) is Annotated:
        mark = get_args(kind)[1]
        return fixed(name, mark.bytes if isinstance(mark, Length) else 5)
    return {bytes: fixed(name, 5), str: name, bool: True, int: 7, float: 0.5}[kind]
