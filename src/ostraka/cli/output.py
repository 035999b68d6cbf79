"""What a command prints: tables for people, JSON for programs, and progress on stderr."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import click
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, last on stdout.")]


def show(*parts: Table | str, figures: dict[str, Any], as_json: bool) -> None:
    """Print the parts for people, then the figures, if asked for, as the last line of stdout."""
    console = Console(stderr=as_json, highlight=False, markup=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    if as_json:
        click.echo(json.dumps(_without_nan(figures)))


def table(*headings: str, **options: Any) -> Table:
    """Make an empty table. A heading in lower case is that of a column of numbers."""
    empty = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), **options)
    for heading in headings:
        # Folded, not cut: keys and digests are there to be copied.
        empty.add_column(
            heading, justify="left" if heading[:1].isupper() else "right", overflow="fold"
        )
    return empty


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Write one pair a line. Lines are never wrapped, so that digests can be copied."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


@contextmanager
def progress(of: int | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Show on stderr what runs and for how long, if that is a terminal.

    Yields step(what, done, of), to be called when something begins.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=of)

        def step(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of, refresh=True)

        yield step


def say(text: str) -> None:
    """Write a line on stderr, above the line of progress if there is one.

    While progress is shown, rich stands in for `sys.stderr`. Click would write past it.
    """
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _without_nan(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
