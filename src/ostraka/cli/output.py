"""How the command speaks: tables for people, JSON for programs, progress and warnings on stderr."""

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import click
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ostraka.errors import LeakyMasking

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, last on stdout.")]


def help_without_command(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        raise typer.Exit


def show(*parts: Table | str, figures: dict[str, Any], as_json: bool) -> None:
    """The parts, for people; then the figures, if asked for, as the last line of stdout."""
    console = Console(stderr=as_json, highlight=False, markup=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    if as_json:
        click.echo(json.dumps(_without_nan(figures)))


def table(*headings: str, **options: Any) -> Table:
    """An empty table. Headings of text start with a capital letter; others are of numbers."""
    empty = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), **options)
    for heading in headings:
        empty.add_column(heading, justify="left" if heading[:1].isupper() else "right")
    return empty


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, a pair to a line that is never wrapped: digests are there to be copied."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


@contextmanager
def progress(of: int | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Shows on stderr what runs and for how long; nothing where that is no terminal.

    Gives step(what, done, of), to be called when something begins.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=of)

        def step(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        yield step


@contextmanager
def plain_warnings() -> Iterator[None]:
    """A masking that leaks says so once, in one line. Other warnings are shown as ever."""
    shown: set[str] = set()

    def show_plain(
        message: Warning | str, category: type[Warning], *place: Any, **more: Any
    ) -> None:
        if not issubclass(category, LeakyMasking):
            usual(message, category, *place, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            click.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", LeakyMasking)
        usual, warnings.showwarning = warnings.showwarning, show_plain
        yield


def _without_nan(value: Any) -> Any:
    """JSON has neither NaN nor infinity: both become null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
