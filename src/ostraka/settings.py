"""Reads TOML text into frozen dataclasses, with the file and the line in every error.

A dataclass declares the layout of a table: its fields are the keys, and their types are the types
of the values. bytes are hex digits in quotes, a dataclass is a table, a tuple is a list or an array
of tables, and a field that may be None may be absent. If a dataclass itself refuses its values, the
line is that of the first key that its error mentions.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from ostraka.encoding import Length
from ostraka.errors import ConfigError

AnyLayout = TypeVar("AnyLayout")

_INTEGERS = range(-(2**63), 2**63)  # what TOML promises to carry
_LONGEST_SHOWN = 60

_PLAIN: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    str: ((str,), "a text in quotes"),
}

# The tokens of TOML, as far as lines and keys go: strings, comments, signs, and all else.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'"
    r"|#[^\n]*"
    r"|[\[\]{}=,.\n]"
    r"|[^\s\"'#\[\]{}=,.]+",
    re.DOTALL,
)


@dataclass(frozen=True)
class Document:
    """A TOML file's values, and the lines that they stand on. A path is such as client[3].key."""

    name: str
    values: dict[str, Any]
    lines: Mapping[str, int] = field(repr=False)

    def read(self, layout: type[AnyLayout]) -> AnyLayout:
        """Returns the whole document in its layout. Raises ConfigError and nothing else."""
        whole: AnyLayout = self._table("", layout, self.values)
        return whole

    def error(self, path: str, what: str) -> ConfigError:
        """Makes an error with the line of this path, or of the table or list that it is in."""
        line = next((self.lines[each] for each in _outwards(path) if each in self.lines), None)
        place = self.name if line is None else f"{self.name}, line {line}"
        return ConfigError(f"{place}: {what}")

    @contextmanager
    def blame(self, *tables: str) -> Iterator[None]:
        """Adds to a ConfigError the line of the first key of these tables that it mentions."""
        try:
            yield
        except ConfigError as invalid:
            raise self.error(self._mentioned(str(invalid), tables), str(invalid)) from None

    def _mentioned(self, text: str, tables: tuple[str, ...]) -> str:
        words = re.findall(r"\w+", text)
        paths = (_join(table, word) for word in words for table in tables)
        return next((path for path in paths if path in self.lines), tables[0])

    def _table(self, path: str, layout: Any, value: Any) -> Any:
        if not isinstance(value, dict):
            raise self._not(path, "a table", value)
        known = _fields(layout)
        for name in value:
            if name not in known:
                raise self.error(_join(path, name), _unknown(path, name, list(known)))
        for name, (kind, required) in known.items():
            if required and name not in value:
                raise self.error(path, _missing(_join(path, name), kind))
        values = {
            name: self._value(_join(path, name), known[name][0], each)
            for name, each in value.items()
        }
        with self.blame(path):
            return layout(**values)

    def _value(self, path: str, kind: Any, value: Any) -> Any:
        if dataclasses.is_dataclass(kind):
            return self._table(path, kind, value)
        if get_origin(kind) in (Union, UnionType):
            (kind,) = (option for option in get_args(kind) if option is not NoneType)
            return self._value(path, kind, value)
        if get_origin(kind) is tuple:
            return self._list(path, get_args(kind)[0], value)
        if get_origin(kind) is Annotated:
            length: Length = get_args(kind)[1]
            return self._bytes(path, value, length.bytes)
        if kind is bytes:
            return self._bytes(path, value, None)
        return self._plain(path, kind, value)

    def _list(self, path: str, kind: Any, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise self._not(path, "a list", value)
        return tuple(self._value(f"{path}[{i}]", kind, each) for i, each in enumerate(value))

    def _bytes(self, path: str, value: Any, size: int | None) -> bytes:
        """Reads hex digits. Errors do not show them: a private key may have been pasted here."""
        digits = "an even number of hex digits" if size is None else f"{2 * size} hex digits"
        if not isinstance(value, str):
            raise self._not(path, f"{digits} in quotes", value)
        if not re.fullmatch(r"[0-9a-fA-F]*", value):
            raise self.error(path, f"{path} is {digits}; got others among {len(value)}")
        if len(value) % 2 or size not in (None, len(value) // 2):
            raise self.error(path, f"{path} is {digits}; got {len(value)}")
        return bytes.fromhex(value)

    def _plain(self, path: str, kind: type, value: Any) -> Any:
        accepted, what = _PLAIN[kind]
        # In Python, though not in TOML, true is a whole number.
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self._not(path, what, value)
        if isinstance(value, int) and value not in _INTEGERS:
            raise self.error(path, f"{path} is a number of at most 64 bits")
        return kind(value)

    def _not(self, path: str, what: str, value: Any) -> ConfigError:
        return self.error(path, f"{path} is {what}; got {_shown(value)}")


def parse(text: str, name: str) -> Document:
    """Parses the document that a file of this name holds. Raises ConfigError with the line."""
    try:
        return Document(name, tomllib.loads(text), _lines(text))
    except tomllib.TOMLDecodeError as invalid:
        raise ConfigError(_syntax_error(str(invalid), text, name)) from None
    except (ValueError, RecursionError):  # from Python itself
        raise ConfigError(f"{name}: a number is too long, or lists are too deep") from None


def _syntax_error(what: str, text: str, name: str) -> str:
    """Returns tomllib's own message, with its line in our place for it."""
    at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", what)
    if at is None:
        return f"{name}: {what}"
    line = int(at[1] or text.rstrip().count("\n") + 1)
    said = what[: at.start()]
    key = re.match(r"\s*([\w.-]+)\s*=", text.splitlines()[line - 1]) if at[1] else None
    if said == "Invalid value" and key:  # The value is not shown: it may be a secret.
        said += f" of {key[1]}: numbers are digits, and words are in quotes"
    return f"{name}, line {line}: {said}"


@cache
def _fields(layout: Any) -> dict[str, tuple[Any, bool]]:
    """Returns the type of every key of a table, and whether it must be given."""
    hints = type_hints(layout, include_extras=True)
    missing = dataclasses.MISSING
    return {
        each.name: (hints[each.name], each.default is missing and each.default_factory is missing)
        for each in dataclasses.fields(layout)
    }


def _unknown(path: str, name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    spelt = name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)
    return f"{_join(path, spelt)} is not known; {advice}"


def _missing(path: str, kind: Any) -> str:
    return (
        f"the table [{path}] is missing" if dataclasses.is_dataclass(kind) else f"{path} is missing"
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _outwards(path: str) -> Iterator[str]:
    """Yields a path and all that it is in: client[3].key, client[3], client."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]


@dataclass(frozen=True)
class _Token:
    text: str
    line: int


def _lines(text: str) -> dict[str, int]:
    """Finds where each table, key and item of a list starts, in a text that is valid TOML."""
    found: dict[str, int] = {}
    arrays: dict[str, int] = {}  # the number of tables so far, by the array's path
    table = ""
    for statement in _statements(text):
        words = [token.text for token in statement]
        line = statement[0].line
        if words[0] == "[":
            if words[1] == "[":
                path = _resolve("", words, arrays, last=False)
                arrays[path] = arrays.get(path, 0) + 1
                found.setdefault(path, line)
            table = _resolve("", words, arrays)
            found[table] = line
        else:
            equals = words.index("=")
            key = _resolve(table, words[:equals], {})
            found[key] = line
            found |= _item_lines(key, statement[equals + 1 :])
    return found


def _statements(text: str) -> Iterator[list[_Token]]:
    """Yields the tokens of one line or one value at a time, without comments."""
    statement: list[_Token] = []
    depth, line = 0, 1
    for word in _TOKEN.findall(text + "\n"):
        depth += (word in ("[", "{")) - (word in ("]", "}"))
        if word == "\n" and depth == 0 and statement:
            yield statement
            statement = []
        if word != "\n" and not word.startswith("#"):
            statement.append(_Token(word, line))
        line += word.count("\n")


def _resolve(table: str, words: list[str], arrays: Mapping[str, int], *, last: bool = True) -> str:
    """Returns the path of a key below a table. An array of tables stands for its newest one."""
    path = table
    names = [word.strip("\"'") for word in words if word not in (".", "[", "]")]
    for i, name in enumerate(names, 1):
        path = _join(path, name)
        if path in arrays and (last or i < len(names)):
            path = f"{path}[{arrays[path] - 1}]"
    return path


def _item_lines(key: str, value: list[_Token]) -> dict[str, int]:
    """Finds where the items of a list start."""
    found: dict[str, int] = {}
    if value[0].text != "[":
        return found
    depth, starts = 0, True
    for token in value:
        closes = token.text in ("]", "}")
        if depth == 1 and starts and not closes:
            found[f"{key}[{len(found)}]"] = token.line
        depth += (token.text in ("[", "{")) - closes
        starts = depth == 1 and (token.text == "," or token is value[0])
    return found
