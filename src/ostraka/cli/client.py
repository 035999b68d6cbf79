"""`ostraka client`."""

from pathlib import Path
from typing import Annotated

import typer

from ostraka.cli import enrolment
from ostraka.cli.output import Json, help_without_command


def client(ctx: typer.Context) -> None:
    """Take part in a federation.

    \b
    Examples:
      ostraka client enrol --name hospital-a
      ostraka client fetch --enclave fl:7420 --name a --key a.key --policy p.toml --out m.st
      ostraka client submit new.st --enclave fl:7420 --name a --key a.key --policy p.toml
    """
    help_without_command(ctx)


def enrol(
    *,
    name: Annotated[str, typer.Option(help="Letters, digits, dots, underscores, hyphens.")],
    out: Annotated[
        Path | None, typer.Option(help="The new key file; the name and .key unless given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key, and print the lines that enrol it.

    The private key stays in a file that only you can read, and is never written over. The lines
    are for the operator, who adds them to federation.toml, raises its revision and signs it; you
    can take part from the next round on.

    \b
    Examples:
      ostraka client enrol --name hospital-a
      ostraka client enrol --name hospital-a --out keys/hospital-a.key --json
    """
    enrolment.enrol("client", name, out, as_json=as_json)
