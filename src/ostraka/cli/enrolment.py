"""A new party's key, and the lines that enrol it."""

from pathlib import Path

import click

from ostraka.cli.output import show
from ostraka.cli.templates import member_lines
from ostraka.config import Member
from ostraka.federation_file import Enrolled
from ostraka.files import write_identity


def enrol(table: str, name: str, out: Path | None, *, as_json: bool) -> None:
    """table: client or worker. Only the lines go to stdout, so that they can be appended."""
    Enrolled(name, bytes(32))  # refuses a name that no federation takes, before a key is made
    path = out or Path(f"{name}.key")
    identity = write_identity(path, name)
    click.echo(f"The private key is in {path}: keep it there, and show it to nobody.", err=True)
    click.echo("For the operator to add to federation.toml, and to sign:", err=True)
    show(
        member_lines(table, Member(name, identity.public)).rstrip(),
        figures={"name": name, "key": identity.public.hex(), "file": str(path)},
        as_json=as_json,
    )
