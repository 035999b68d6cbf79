"""The pages of the documentation site that are made from the code: API, commands, files, errors.

`pages()` returns them as Markdown by their path. They are not committed, so they cannot be stale.
What stands behind each entry is a docstring, a help text or a comment of `ostraka init`;
`undescribed` finds the entries that have none.
"""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol

import click
import typer

from ostraka import errors, events, federation_file
from ostraka.attestation import policy_file
from ostraka.cli import app, templates
from ostraka.cli.lazy import Command, Group, LazyGroup, load
from ostraka.cli.rules import _Entry, _shortest
from ostraka.config import Terms
from ostraka.core import rules
from ostraka.core.rules.seam import Part
from ostraka.enclave import __main__ as enclave_program
from ostraka.enclave.status import Status

NOTICE = "*Made from the code at every build of this site.*"

# What users call, by the heading that it stands under. A module gives all that it lists.
PUBLIC: dict[str, tuple[str, ...]] = {
    "One round": ("ostraka:run_round", "ostraka:RoundResult"),
    "A client": (
        "ostraka:Client",
        "ostraka.client.results:Model",
        "ostraka.client.results:Outcome",
        "ostraka.messages:Receipt",
    ),
    "What a client reports": ("ostraka.client.events:*",),
    "Flower": ("ostraka.flower:*",),
    "Tasks of the lab": ("ostraka_lab.app:App",),
    "To extend it": (
        "ostraka.core.rules.seam:Rule",
        "ostraka.core.rules.seam:PreAggregation",
        "ostraka.core.rules.seam:Options",
        "ostraka.core.gram:Kernel",
        "ostraka.core.gram:Sum",
        "ostraka.worker.backends:choose",
        "ostraka.carried.relay:Carrier",
        "ostraka.carried.relay:Relay",
        "ostraka.carried.node:Node",
        "ostraka.attestation.tees:Tee",
        "ostraka.crypto.stream:SecretStream",
    ),
}
ELSEWHERE = {"errors", "__version__"}  # of ostraka.__all__: errors have a page of their own

_LAB = ("bench", "compare", "data", "demo", "train")


@dataclass(frozen=True)
class Entry:
    """One thing that is described: an argument, an option, a field, a metric."""

    name: str
    kind: str
    default: str
    says: str


def pages() -> dict[str, str]:
    """Every generated page, as Markdown by its path in the site."""
    return {
        "reference/api.md": api_page(),
        "reference/commands.md": commands_page(
            "Commands of a federation", [name for name in top_commands() if name not in _LAB]
        ),
        "reference/lab-commands.md": commands_page("Commands of the lab", _LAB),
        "reference/federation-toml.md": federation_page(),
        "reference/policy-toml.md": policy_page(),
        "reference/errors.md": errors_page(),
        "reference/metrics.md": metrics_page(),
        "reference/rules.md": rules_page(),
    }


def undescribed() -> list[str]:
    """The entries of all generated pages that have no sentence."""
    return [f"{where}: {each.name}" for where, each in entries() if not each.says.strip()]


def entries() -> Iterator[tuple[str, Entry]]:
    """Everything that the generated pages describe, with the part that it stands in."""
    for name, thing in public().items():
        yield name, Entry(name, "", "", first_sentence(inspect.getdoc(thing) or ""))
        for member, value in methods(thing):
            yield name, Entry(member, "", "", first_sentence(inspect.getdoc(value) or ""))
    for words, command in commands():
        yield "commands", Entry(words, "", "", command.summary)
        yield from ((words, each) for each in command.options)
    for layout in (federation_file._Layout, policy_file._Layout):
        yield from ((table, each) for table, each in _settings(layout))
    for kind in error_classes():
        yield "errors", Entry(kind.__name__, "", "", remedy(kind))
    yield from (("metrics", each) for each in metrics())
    yield from (("events", each) for each in operator_events())
    for name, part in (rules.RULES | rules.PRE).items():
        yield "rules", Entry(name, "", "", part.citation and (inspect.getdoc(type(part)) or ""))


# Text.


def text(said: str) -> str:
    """Plain text as Markdown: what is no code is shown as it is written."""
    parts = re.split(r"(`[^`]*`)", " ".join(said.split()))
    return "".join(
        each if each.startswith("`") else re.sub(r"([\\*<\[\]_|])", r"\\\1", each) for each in parts
    )


def cell(said: str) -> str:
    """Text in a table, where a bar would end it even within code."""
    return re.sub(r"(?<!\\)\|", "\\|", said if said.startswith("`") else text(said))


def code(said: str) -> str:
    return f"`{said}`" if said else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def described(heads: Sequence[str], found: Sequence[Entry]) -> str:
    """A table of entries; columns in which nothing stands are left out."""
    rows = [(code(e.name), cell(code(e.kind)), cell(code(e.default)), cell(e.says)) for e in found]
    kept = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    return table([heads[n] for n in kept], [[row[n] for n in kept] for row in rows])


def prose(doc: str) -> str:
    """A docstring's paragraphs. What is indented in it is shown as code."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(doc).strip())
    return "".join(
        f"```text\n{inspect.cleandoc(chr(10) + each)}\n```\n\n"
        if each.startswith("    ")
        else f"{text(each)}\n\n"
        for each in blocks
        if each
    )


def first_sentence(doc: str) -> str:
    return " ".join(doc.split("\n\n", maxsplit=1)[0].split())


def split_fields(doc: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A docstring without what it says of these names, and what it says of each.

    Docstrings have the form "name: what it is. other, another: what both are."
    """
    told: dict[str, str] = {}
    kept: list[str] = []
    listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    head = re.compile(rf"(?:(?<=^)|(?<=[.)] ))((?:{listed})(?:(?:, | and | to )(?:{listed}))*): ")
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        flat = " ".join(paragraph.split())
        starts = list(head.finditer(flat)) if names else []
        if not starts:
            kept.append(paragraph)
            continue
        if before := flat[: starts[0].start()].strip():
            kept.append(before)
        for found, after in zip(starts, [*starts[1:], None], strict=True):
            said = flat[found.end() : after.start() if after else None].strip()
            told |= dict.fromkeys(_span(found[1], names), said)
    return "\n\n".join(kept), told


def _span(said: str, names: Sequence[str]) -> list[str]:
    """The names of "a, b and c", or of "a to c" in the order in which they are declared."""
    if " to " in said:
        first, last = said.split(" to ")
        return list(names)[names.index(first) : names.index(last) + 1]
    return re.split(r", | and ", said)


# The API.


def public() -> dict[str, Any]:
    """Every public class and function, by where it is found."""
    found: dict[str, Any] = {}
    for names in PUBLIC.values():
        for each in names:
            found |= _named(each)
    return found


def _named(where: str) -> dict[str, Any]:
    module_name, _, name = where.partition(":")
    module = import_module(module_name)
    if name != "*":
        return {f"{module_name}.{name}": getattr(module, name)}
    listed = getattr(module, "__all__", None) or [
        each
        for each, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module_name and each[0] != "_"
    ]
    return {
        f"{module_name}.{each}": getattr(module, each)
        for each in listed
        if callable(getattr(module, each))
    }


def methods(thing: Any) -> list[tuple[str, Any]]:
    """The public methods and properties that a class itself declares, with a docstring."""
    if not inspect.isclass(thing):
        return []
    declared = [
        (name, value.__func__ if isinstance(value, classmethod | staticmethod) else value)
        for name, value in vars(thing).items()
        if not name.startswith("_")
    ]
    kinds = (types.FunctionType, property)
    return [(n, v) for n, v in declared if isinstance(v, kinds) and inspect.getdoc(v)]


def api_page() -> str:
    page = f"# API\n\n{NOTICE}\n\n"
    for heading, names in PUBLIC.items():
        page += f"## {heading}\n\n"
        for each in names:
            for name, thing in _named(each).items():
                page += _api_entry(name, thing)
    return page


def _api_entry(name: str, thing: Any) -> str:
    short = name.rpartition(".")[2]
    page = f"### `{name}` {{ #{name} }}\n\n{_signature(short, thing)}"
    page += _documented(thing)
    for member, value in methods(thing):
        page += f"#### `{short}.{member}` {{ #{name}.{member} }}\n\n"
        if isinstance(value, types.FunctionType):
            page += _signature(member, value)
        page += _documented(value)
    return page


def _documented(thing: Any) -> str:
    """The docstring, and a table of the arguments or fields."""
    doc, found, written = inspect.getdoc(thing) or "", _parameters(thing), _types(thing)
    what = "field" if dataclasses.is_dataclass(thing) else "argument"
    rest, told = split_fields(doc, list(found))
    rows = [
        Entry(name, written.get(name, ""), _default(each.default), told.get(name, ""))
        for name, each in found.items()
    ]
    return prose(rest) + described((what, "type", "default", "what it is"), rows)


def _parameters(thing: Any) -> dict[str, inspect.Parameter]:
    try:
        found = dict(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return {}
    return {name: each for name, each in found.items() if name not in ("self", "cls")}


def _types(thing: Any) -> dict[str, str]:
    """The annotations of arguments or fields, as they are written in the source."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    except (OSError, TypeError):
        return {}
    inside = node.body if isinstance(node, ast.ClassDef) else [node]
    found: dict[str, ast.expr | None] = {}
    for each in inside:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each.annotation
        elif isinstance(each, ast.FunctionDef) and (each is node or each.name == "__init__"):
            every = [*each.args.args, *each.args.kwonlyargs, each.args.vararg, each.args.kwarg]
            found |= {one.arg: one.annotation for one in every if one is not None}
    return {name: ast.unparse(each) for name, each in found.items() if each is not None}


def _default(value: Any) -> str:
    unknown = value is inspect.Parameter.empty or repr(value) == "<factory>"
    return "" if unknown else _value(value)


def _signature(name: str, thing: Any) -> str:
    """The call, with one argument a line if it is long."""
    found = _parameters(thing)
    if dataclasses.is_dataclass(thing) or getattr(thing, "_is_protocol", False):
        return ""
    shown: list[str] = []
    star = False
    for each in found.values():
        if each.kind is each.VAR_POSITIONAL:
            shown, star = [*shown, f"*{each.name}"], True
        elif each.kind is each.VAR_KEYWORD:
            shown.append(f"**{each.name}")
        else:
            if each.kind is each.KEYWORD_ONLY and not star:
                shown, star = [*shown, "*"], True
            given = _default(each.default)
            shown.append(f"{each.name}={given}" if given else each.name)
    line = f"{name}({', '.join(shown)})"
    if len(line) > 80:
        inner = "".join(f"    {each},\n" for each in shown)
        line = f"{name}(\n{inner})"
    return f"```py\n{line}\n```\n\n"


# Commands.


@dataclass(frozen=True)
class Described:
    """A command or a group of commands, as its help says it."""

    summary: str
    body: str
    examples: str
    usage: str
    options: tuple[Entry, ...]


def top_commands() -> list[str]:
    return [*_root().entries]


def _root() -> LazyGroup:
    return typing.cast("LazyGroup", typer.main.get_command(app))


def commands() -> Iterator[tuple[str, Described]]:
    """Every command with its words, in the order of the help."""
    for name, entry in _root().entries.items():
        yield from _clicked(f"ostraka {name}", name, entry)


def _clicked(words: str, name: str, entry: Command | Group) -> Iterator[tuple[str, Described]]:
    if isinstance(entry, Command) and entry.passes_on:
        yield from _argued(words, enclave_program.parser())
        return
    command = load(name, entry)
    context = click.Context(command, info_name=words)
    usage = command.get_usage(context).removeprefix("Usage: ")
    options = () if isinstance(entry, Group) else tuple(_options(command, context))
    body, _, examples = (command.help or "").replace("\b\n", "").partition("Examples:\n")
    summary, _, rest = inspect.cleandoc(body).partition("\n\n")
    yield (
        words,
        Described(
            " ".join(summary.split()), rest, inspect.cleandoc("\n" + examples), usage, options
        ),
    )
    if isinstance(entry, Group):
        for below, each in entry.commands.items():
            yield from _clicked(f"{words} {below}", below, each)


def _options(command: click.Command, context: click.Context) -> Iterator[Entry]:
    for each in command.get_params(context):
        name = ", ".join(each.opts) if isinstance(each, click.Option) else each.human_readable_name
        if getattr(each, "hidden", False) or "--help" in each.opts:
            continue
        flag = isinstance(each, click.Option) and each.is_flag
        kind = "" if flag else each.make_metavar(context).strip("[]").replace("|", " | ")
        default = getattr(each, "show_default", None)
        given = default if isinstance(default, str) else _shown(each, flag=flag)
        says = getattr(each, "help", None) or ""
        required = each.required and isinstance(each, click.Option)
        yield Entry(name, kind, given, says + " Required." * bool(required))


def _shown(each: click.Parameter, *, flag: bool) -> str:
    value = each.default
    if flag or value is None or callable(value) or "UNSET" in repr(value).upper():
        return ""
    return str(value) if value != () else ""


def _argued(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, Described]]:
    summary, _, rest = (parser.description or "").partition("\n\n")
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    options = tuple(
        Entry(
            ", ".join(each.option_strings) or str(each.metavar or each.dest),
            str(each.metavar or "") if each.option_strings else "",
            "" if each.default in (None, False, argparse.SUPPRESS) else str(each.default),
            _capital(re.sub(r" \(default: [^)]*\)", "", each.help or ""))
            + "."
            + " Required." * bool(each.required and each.option_strings),
        )
        for each in parser._actions
        if each.help != argparse.SUPPRESS and each not in [*below, *_helps(parser)]
    )
    examples = (parser.epilog or "").removeprefix("Examples:\n")
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    yield (
        words,
        Described(
            " ".join(summary.split()), rest, inspect.cleandoc("\n" + examples), usage, options
        ),
    )
    for group in below:
        for name, each in group.choices.items():
            yield from _argued(f"{words} {name}", each)


def _helps(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [each for each in parser._actions if "--help" in each.option_strings]


def _capital(said: str) -> str:
    return said[:1].upper() + said[1:]


def commands_page(title: str, top: Sequence[str]) -> str:
    page = f"# {title}\n\n{NOTICE} Every command shows the same with `--help`.\n\n"
    for words, each in commands():
        if words.split()[1] not in top:
            continue
        level = "#" * min(4, len(words.split()))
        page += f"{level} `{words}` {{ #{words.replace(' ', '-')} }}\n\n{text(each.summary)}\n\n"
        page += prose(each.body) if each.body else ""
        page += f"```text\n{each.usage}\n```\n\n"
        page += described(("option", "value", "default", "what it does"), each.options)
        page += f"```console\n{_typed(each.examples)}\n```\n\n" if each.examples else ""
    return page


def _typed(examples: str) -> str:
    return re.sub(r"^(?=ostraka )", "$ ", examples, flags=re.MULTILINE)


# Files.


def federation_page() -> str:
    intro = (
        "The federation file has the terms and the roster, which the authority signs, and how the "
        "operator runs the enclave. `ostraka init` writes one with every setting in it; "
        "`ostraka sign` signs it again after a change of what is marked *signed*."
    )
    return _file_page("federation.toml", intro, federation_file._Layout)


def policy_page() -> str:
    intro = (
        "A client's policy says which enclaves it accepts. Nothing is accepted that is not listed; "
        "[Attestation](../attestation.md#the-policy) says how to fill it in."
    )
    return _file_page("policy.toml", intro, policy_file._Layout)


_SIGNED = {"federation", "model", "terms", "optimiser", "client", "worker", "witness"}


def _file_page(name: str, intro: str, layout: Any) -> str:
    page = f"# {name}\n\n{NOTICE}\n\n{intro}\n\n"
    found: dict[str, list[Entry]] = {}
    for where, entry in _settings(layout):
        found.setdefault(where, []).append(entry)
    for where, rows in found.items():
        heading = where or "The head of the file"
        signed = layout is federation_file._Layout and where.strip("[]") in _SIGNED
        page += f"## {f'`{heading}`' if where else heading}{{ #{where.strip('[]') or 'head'} }}\n\n"
        page += "*Signed by the authority.*\n\n" if signed else ""
        page += described(("setting", "type", "default", "what it is"), rows)
    return page


def _settings(layout: Any) -> Iterator[tuple[str, Entry]]:
    """Every setting of a file, with the table that it stands in."""
    comments = _comments()
    hints = typing.get_type_hints(layout, include_extras=True)
    for each in dataclasses.fields(layout):
        inner = _table_of(hints[each.name])
        if inner is None:
            yield "", _setting(layout, each, comments.get("", {}))
        else:
            many = typing.get_origin(hints[each.name]) is tuple
            where = f"[[{each.name}]]" if many else f"[{each.name}]"
            yield from _table_settings(where, inner, comments.get(each.name, {}))


def _table_settings(where: str, kind: Any, said: Mapping[str, str]) -> Iterator[tuple[str, Entry]]:
    for each in dataclasses.fields(kind):
        yield where, _setting(kind, each, said)
        if inner := _table_of(typing.get_type_hints(kind)[each.name]):
            for below in dataclasses.fields(inner):
                entry = _setting(inner, below, {})
                yield where, dataclasses.replace(entry, name=f"{each.name}.{entry.name}")


def _setting(kind: Any, each: "dataclasses.Field[Any]", comments: Mapping[str, str]) -> Entry:
    hint = typing.get_type_hints(kind, include_extras=True)[each.name]
    names = [one.name for one in dataclasses.fields(kind)]
    documents = [*kind.__mro__, *_MORE_WORDS.get(kind, ())]
    told = (split_fields(one.__doc__ or "", names)[1].get(each.name) for one in documents)
    says = next(filter(None, told), "") or comments.get(each.name, "")
    return Entry(each.name, type_name(hint), _field_default(each), _spelled(says, kind))


def _spelled(says: str, kind: Any) -> str:
    """A sentence with the values of the constants that it names in the place of their names."""
    declared = vars(sys.modules[kind.__module__])

    def values(name: re.Match[str]) -> str:
        found = declared.get(name[1])
        listed = found.values() if isinstance(found, Mapping) else found or ()
        return ", ".join(f'`"{each}"`' for each in listed) or name[0]

    return re.sub(r"(?:the values of )?`([A-Z]+)`", values, says)


_MORE_WORDS: dict[Any, tuple[Any, ...]] = {
    federation_file.TermsTable: (Terms, rules.Options),
}


def _table_of(hint: Any) -> Any:
    """The dataclass behind a table of the file, or behind a list of such tables."""
    inner = [hint, *typing.get_args(hint)]
    return next((each for each in inner if dataclasses.is_dataclass(each)), None)


def _field_default(each: "dataclasses.Field[Any]") -> str:
    value = each.default
    if value is dataclasses.MISSING and each.default_factory is not dataclasses.MISSING:
        value = each.default_factory()
    if value is dataclasses.MISSING:
        return ""
    if value is None or dataclasses.is_dataclass(value):
        return ""
    return str(value).lower() if isinstance(value, bool) else _value(value)


def _value(value: Any) -> str:
    """A default as it is written in code or in a file."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool | int) or value is None:
        return str(value)
    return getattr(value, "__name__", type(value).__name__)


def type_name(hint: Any) -> str:
    """A type as it is written in a file, in a word or two."""
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    if hint is bytes:
        return "hex"
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_name(each) for each in inside if each is not type(None))
    if origin is tuple:
        return f"list of {type_name(inside[0])}"
    if inspect.isclass(hint):
        return hint.__name__
    return str(hint)


def _comments() -> dict[str, dict[str, str]]:
    """What the comments of the files that `ostraka init` writes say, by table and setting."""
    written = "\n".join((templates._FEDERATION, templates._POLICY, templates._SECTIONS))
    said: dict[str, dict[str, str]] = {}
    where = ""
    for line in written.splitlines():
        if line.startswith("version = "):
            where = ""
        if found := re.fullmatch(r"(?:# )?\[+([a-z]+)\]+", line):
            where = found[1]
        elif found := re.match(r"(?:# )?(\w+) = .*?  +# (.+)$", line):
            said.setdefault(where, {})[found[1]] = found[2]
    return said


# Errors, metrics, events, rules.


def error_classes() -> list[type[Exception]]:
    """Every error and warning of `ostraka.errors`, as the tree has them."""
    return [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.OstrakaError | UserWarning)
    ]


def remedy(kind: type[Exception]) -> str:
    """What to do about it: the paragraph of its docstring that begins with "Remedy:"."""
    found = re.search(r"^Remedy: (.*?)(?:\n\s*\n|\Z)", inspect.getdoc(kind) or "", re.S | re.M)
    return _capital(" ".join(found[1].split())) if found and kind.__doc__ else ""


def errors_page() -> str:
    tree = "\n".join((errors.__doc__ or "").splitlines()[2:])
    page = (
        f"# Errors\n\n{NOTICE}\n\n"
        "All that goes wrong on purpose is a class of `ostraka.errors`. A command shows it as one "
        "line on standard error, and ends with the code beside it.\n\n"
        f"```text\n{tree}\n```\n\n"
    )
    for kind in error_classes():
        meaning = re.sub(r"(?ms)^Remedy: .*?(?:\n\s*\n|\Z)", "", inspect.getdoc(kind) or "")
        page += f"### `{kind.__name__}` {{ #{kind.__name__} }}\n\n{prose(meaning)}"
        page += f"**What to do.** {text(remedy(kind))}\n\n"
        if issubclass(kind, errors.OstrakaError):
            blank = kind.__new__(kind)
            page += f"Exit code {errors.exit_code(blank)}.\n\n"
    for heading, reasons in (
        ("Why an update is rejected", errors.Rejection),
        ("Why an enclave is refused", errors.Refusal),
    ):
        page += f"## {heading}\n\n{prose(inspect.getdoc(reasons) or '')}" + _reasons(reasons)
    return page


def _reasons(kind: type[StrEnum]) -> str:
    return table(
        ["name", "reason"], [[code(each.name), cell(_capital(each.value))] for each in kind]
    )


class _Family(Protocol):
    name: str
    documentation: str
    type: str


def metrics() -> list[Entry]:
    """What the enclave serves to Prometheus, from its own registry."""
    families: list[_Family] = list(Status(simulated=True, evidence="").registry.collect())
    return [
        Entry(
            each.name + "_total" * (each.type == "counter"), each.type, "", each.documentation + "."
        )
        for each in families
    ]


def operator_events() -> list[Entry]:
    """What an operator sees in the log."""
    return [
        Entry(kind.__name__, "", "", first_sentence(inspect.getdoc(kind) or ""))
        for kind in typing.get_args(events.Event)
    ]


def metrics_page() -> str:
    return (
        f"# Metrics and events\n\n{NOTICE}\n\n"
        "`metrics` under `[enclave]` serves Prometheus. None of it tells an update, a distance, a "
        "score or who was selected. What to do when an alarm fires is in "
        "[Operating a federation](../operations.md#what-to-do-when).\n\n"
        "## Metrics\n\n"
        + described(("metric", "type", "", "what it is"), metrics())
        + "## Events\n\nLog lines of the enclave's service; each is counted in "
        "`ostraka_events_total`.\n\n"
        + described(("event", "", "", "what it means"), operator_events())
    )


def rules_page() -> str:
    page = (
        f"# Rules\n\n{NOTICE} `ostraka rules --n 12 --f 3` says which of them stand with 12 "
        "clients.\n\n"
        "A rule turns the inner products of all updates into weights. Names are joined by `+`: "
        "`arc+nnm+geometric-median` cuts long updates, mixes each with its neighbours, and takes "
        "the geometric median. [Papers](../papers.md) has links to all that is cited.\n\n"
    )
    for heading, parts in (("Rules", rules.RULES), ("Before a rule", rules.PRE)):
        page += f"## {heading} {{ #{heading.lower().replace(' ', '-')} }}\n\n"
        for name, part in parts.items():
            page += f"### `{name}` {{ #{name} }}\n\n{prose(inspect.getdoc(type(part)) or '')}"
            page += _facts(name, part)
    return page


def _facts(name: str, part: Part) -> str:
    aliases = [alias for alias, own in rules.ALIASES.items() if own == name]
    facts = [("Proposed by", text(part.citation))]
    facts += [("Options", ", ".join(f"`{k}` ({text(v)})" for k, v in part.takes.items()))]
    facts += [("Others call it", ", ".join(map(code, aliases)))]
    if isinstance(part, rules.Rule):
        facts += [("Clients", f"at least {_Entry(name, part, _shortest(name, part)).least()}")]
    return "".join(f"- {head}: {said}\n" for head, said in facts if said) + "\n"
