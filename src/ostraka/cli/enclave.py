"""`ostraka enclave`: becomes the enclave's own entry, so that nothing else is in its process."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import click
import typer

# For shell completion, which must not load what the entry loads. A test compares them with it.
WORDS = {
    (): ("run", "shard", "evidence", "migrate"),
    ("migrate",): ("request", "export", "import"),
}


def _complete(ctx: click.Context, incomplete: str) -> list[str]:
    before = tuple(ctx.params.get("arguments") or ())
    return [word for word in WORDS.get(before, ()) if word.startswith(incomplete)]


def enclave(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="See --help.", autocompletion=_complete),
    ] = None,
) -> None:
    """Run the enclave's service, or hand its state to a successor.

    \b
    Examples:
      ostraka enclave run --config federation.toml
      ostraka enclave migrate request --from HEX --config federation.toml --out request.bin
    """
    os.execv(sys.executable, entry(arguments or ()))  # noqa: S606 (this interpreter, and no shell)


def entry(arguments: Sequence[str]) -> list[str]:
    """The command line of the enclave's entry with these arguments.

    -P keeps Python from loading modules out of the folder in which the command is run. -I, which
    also ignores the environment, is passed on.
    """
    isolation = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, isolation, "-m", "ostraka.enclave", *arguments]
