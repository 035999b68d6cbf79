"""`ostraka rules`: all rules and pre-aggregations, as their classes describe them."""

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import click
import typer
from rich.table import Table

from ostraka.cli.output import Json, show, table
from ostraka.core.rules import (
    ALIASES,
    DEFAULT,
    DEFAULT_PRE,
    FALLBACK,
    PAPER,
    PRE,
    RULES,
    Composition,
    Options,
    Part,
    Rule,
    compose,
)
from ostraka.core.rules.resilience import turns_around
from ostraka.errors import ConfigError

_ANYONE = "client-1"
_PARTS: tuple[Part, ...] = (*RULES.values(), *PRE.values())
_WEIGHTS = "Rules that weigh updates. They cost the second pass nothing."
_COLUMNS = "Rules that reduce each column by itself, inside the second pass, which takes longer."
_BEFORE = (
    "Pre-aggregations, any number of them before a rule. They cost nothing, except before one that "
    "reduces columns: there nnm and bucketing mix all updates, inside."
)

_STANDS, _TOO_FEW, _TURNS, _NOT_ROBUST = "stands", "too few", "turns", "not robust"
_VERDICTS = (
    f"{_TURNS.capitalize()}: where honest updates have as much of their own as in common, f equal "
    "updates can turn the aggregate around, if nothing comes before the rule (docs/attacks.md). "
    f"{_NOT_ROBUST.capitalize()}: a single Byzantine client can move the model."
)
_TURNED = (
    "warning: with n = {n} and f = {f}, f equal updates can turn the aggregate of {rule} around "
    "where honest updates have as much of their own as in common (docs/attacks.md): take {ways}"
)
_MORE = 16  # times f: as many clients as anybody is advised to enrol


@dataclass(frozen=True)
class _Entry:
    """A rule or a pre-aggregation. composition: the shortest with which it stands."""

    name: str
    part: Part
    composition: Composition

    @property
    def what(self) -> str:
        return (type(self.part).__doc__ or "").partition("\n")[0]

    @property
    def aliases(self) -> list[str]:
        return [alias for alias, name in ALIASES.items() if name == self.name]

    @property
    def columnwise(self) -> bool:
        return isinstance(self.part, Rule) and self.part.columnwise

    @property
    def needs(self) -> list[str]:
        """What the terms must say besides its name."""
        return list(self._needs())

    def _needs(self) -> Iterator[str]:
        if isinstance(self.part, Rule):
            if self.part.needs_root:
                yield "a root client"
            if self.composition.pre:
                yield f"{self.composition.pre[0]} before it"
            if self.part.discloses:
                yield "disclose_values, or nnm before it"
        if self.composition.needs_last:
            yield 'no sketch, or centre = "medoid"'
        elif (columns := self.least_sketch) is None:
            yield "no sketch"
        elif columns:
            yield f"no sketch below {columns:,} columns"

    @property
    def least_sketch(self) -> int | None:
        """How many columns a sketch must have for it; None if none will do."""
        for columns in sorted({part.least_sketch or 0 for part in _PARTS}):
            with contextlib.suppress(ConfigError):
                self.composition.require_sketch(columns)
                return columns
        return None

    def least(self) -> str:
        """The smallest n for f, as a formula of f."""
        slope = self.composition.least(3) - self.composition.least(2)
        rest = self.composition.least(2) - 2 * slope
        return " + ".join(filter(None, [f"{slope}f".replace("1f", "f") * bool(slope), str(rest)]))

    def figures(self, n: int | None, f: int | None) -> dict[str, Any]:
        return {
            "name": self.name,
            "what": self.what,
            "least": self.least(),
            "least_n": None if f is None else self.composition.least(f),
            "most_f": None if n is None else self._most(n),
            "stands": None if n is None or f is None else n >= self.composition.least(f),
            "verdict": self._verdict(n, f),
            "needs": self.needs,
            "least_sketch": self.least_sketch,
            "columnwise": self.columnwise,
            "options": dict(self.part.takes),
            "aliases": self.aliases,
            "citation": self.part.citation,
        }

    def _verdict(self, n: int | None, f: int | None) -> str | None:
        # What a pre-aggregation withstands is up to the rule behind it.
        return _verdict(self.composition, n, f, judge=isinstance(self.part, Rule))

    def _most(self, n: int) -> int | None:
        """The largest f that n clients bear; None if they are too few for any."""
        return max((f for f in range(n) if self.composition.least(f) <= n), default=None)


def rules(
    *,
    n: Annotated[int | None, typer.Option("--n", help="Say what stands with n clients.")] = None,
    f: Annotated[
        int | None, typer.Option("--f", help="Say what it takes if f may be Byzantine.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the aggregation rules: how many clients each needs, and what else.

    A rule is written as `rule` under [terms] of federation.toml, and what comes before it as `pre`.
    Options are written beside them, and have behind their name here what holds unless they are.
    With --n and --f the table says which of them stand with n clients of which f may be Byzantine,
    and which of those are not robust, or can be turned around by f equal updates.

    \b
    Examples:
      ostraka rules
      ostraka rules --n 12 --f 3
      ostraka rules --n 12 --json
    """
    for name, value in (("n", n), ("f", f)):
        if value is not None and value < 0:
            raise ConfigError(f"{name} counts clients and cannot be negative; got {value}")
    found = {name: _Entry(name, part, _shortest(name, part)) for name, part in RULES.items()}
    before = {
        name: _Entry(name, part, Composition("mean", RULES["mean"], (name,), (part,)))
        for name, part in PRE.items()
    }
    told = {name: each.figures(n, f) for name, each in (found | before).items()}
    weighing = {name: each for name, each in found.items() if not each.columnwise}
    reducing = {name: each for name, each in found.items() if each.columnwise}
    usual = compose(DEFAULT, DEFAULT_PRE)
    verdict = _verdict(usual, n, f)
    show(
        *(_WEIGHTS, _table(weighing, told, n, f)),
        *(_COLUMNS, _table(reducing, told, n, f)),
        *(_BEFORE, _table(before, told, n, f)),
        *([_VERDICTS] if verdict else []),
        f"Usual: {_with(str(usual), verdict)}. "
        f"The paper's: {_with(PAPER, told[PAPER]['verdict'])}.",
        figures={
            "usual": str(usual),
            "usual_verdict": verdict,
            "n": n,
            "f": f,
            "rules": [told[name] for name in found],
            "pre": [told[name] for name in before],
        },
        as_json=as_json,
    )


def _shortest(name: str, rule: Rule) -> Composition:
    """The rule with no more before it than it needs."""
    options = Options(root=_ANYONE if rule.needs_root else "")
    try:
        return compose(name, (), options)
    except ConfigError:
        return compose(name, ("nnm",), options)


def _verdict(
    composition: Composition, n: int | None, f: int | None, *, judge: bool = True
) -> str | None:
    """Whether it stands with n clients of which f may be Byzantine; None if one is not known.

    judge: look at what f of them can do as well.
    """
    if n is None or f is None:
        return None
    if n < composition.least(f):
        return _TOO_FEW
    if judge and f and not composition.robust:
        return _NOT_ROBUST
    return _TURNS if judge and turns_around(composition, n, f) else _STANDS


def _with(name: str, verdict: str | None) -> str:
    return f"{name} ({verdict})" if verdict else name


def _table(
    entries: Mapping[str, _Entry],
    told: Mapping[str, Mapping[str, Any]],
    n: int | None,
    f: int | None,
) -> Table:
    columns = ["Name", "n >=" if f is None else f"n for f = {f}"]
    if n is not None:
        columns.append(f"most f for {n}" if f is None else f"With {n}")
    shown = table(*columns, "What it is")
    shown.columns[0].no_wrap = True
    for name, each in entries.items():
        figures = told[name]
        row = [name, figures["least"] if f is None else str(figures["least_n"])]
        if n is not None and f is None:
            row.append("-" if figures["most_f"] is None else str(figures["most_f"]))
        elif n is not None:
            row.append(figures["verdict"])
        shown.add_row(*row, "\n".join(_words(each)))
    return shown


def _words(entry: _Entry) -> Iterator[str]:
    yield entry.what
    for heading, listed in (
        ("Needs", entry.needs),
        ("Options", [f"{name} ({usual})" for name, usual in entry.part.takes.items()]),
        ("Also called", entry.aliases),
    ):
        if listed:
            yield f"{heading}: {', '.join(listed)}"
    yield entry.part.citation


def warn_of_copies(composition: Composition, n: int, f: int) -> None:
    """Print a warning if f equal updates of n can turn the aggregate around, and what to do.

    Nothing is said of a rule that is not robust at all.
    """
    if composition.robust and turns_around(composition, n, f):
        ways = ", or ".join(_ways(composition, n, f))
        click.echo(_TURNED.format(n=n, f=f, rule=composition, ways=ways), err=True)


def _ways(composition: Composition, n: int, f: int) -> Iterator[str]:
    """What keeps f equal updates from turning the aggregate around."""
    yield from better_numbers(composition, n, f)
    all_but_f = replace(composition, options=replace(composition.options, k=None))
    if composition.options.k is not None and not turns_around(all_but_f, n, f):
        yield f"k = {n - f}"
    yield f"another rule, such as {FALLBACK}"


def better_numbers(composition: Composition, n: int, f: int) -> Iterator[str]:
    """How many clients f takes, and which f these clients bear, with no warning at all.

    Rounds stand still unless n > 3f, so these numbers avoid both warnings.
    """
    counts = range(n, _MORE * f)
    more = bisect_left(counts, True, key=lambda each: not _is_warned_of(composition, each, f))
    if more < len(counts):
        yield f"at least {counts[more]} clients"
    fewer = bisect_left(range(1, f), True, key=lambda each: _is_warned_of(composition, n, each))
    if fewer:
        yield f"f = {fewer}"


def _is_warned_of(composition: Composition, n: int, f: int) -> bool:
    return n <= 3 * f or (composition.robust and turns_around(composition, n, f))
