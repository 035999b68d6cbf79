"""The command `ostraka`: the only place that prints or exits.

Figures go to stdout. With --json they are one object on one line, the last on stdout, and
everything else goes to stderr. How it ends is in `exit_codes`.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

# gRPC reads this when it is loaded. What it would say is about its own source code.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from ostraka.cli import attest, client, enclave, enclave_migrate, init, leakage, worker
from ostraka.cli.exit_codes import TERMINATED, exit_code
from ostraka.cli.output import help_without_command, plain_warnings
from ostraka.errors import OstrakaError
from ostraka_lab.commands import bench, compare, data, train


class _PlainHelp(click.Command):
    """Typer writes its help for rich even where it is shown as it stands."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")


class _Command(_PlainHelp, TyperCommand):
    pass


class _Group(_PlainHelp, TyperGroup):
    """Turns deliberate errors and warnings into one line each, for all commands alike."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with plain_warnings():
                return super().invoke(ctx)
        except OstrakaError as error:
            click.echo(f"ostraka: {error}", err=True)
            raise typer.Exit(exit_code(error)) from None


def main() -> None:
    # As an exit, so that files and processes of a benchmark are cleared away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    app(prog_name="ostraka")


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            click.echo(f"ostraka {version('ostraka')}")
        except PackageNotFoundError:
            click.echo("ostraka, not installed")
        raise typer.Exit


def ostraka(
    ctx: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Private and Byzantine-robust aggregation for federated learning.

    \b
    Examples:
      ostraka demo
      ostraka init first-run
      ostraka leakage --dim 3500000
      ostraka bench kernels --clients 64 --dim 3500000
    """
    help_without_command(ctx)


def _group() -> typer.Typer:
    return typer.Typer(
        cls=_Group,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        # Click makes suggestions by itself.
        suggest_commands=False,
    )


def _subgroup(
    callback: Callable[..., None],
    within: typer.Typer | None = None,
    **commands: Callable[..., None],
) -> typer.Typer:
    """A group of commands, under the name of its callback."""
    group = _group()
    group.callback()(callback)
    for name, command in commands.items():
        group.command(name, cls=_Command)(command)
    (within or app).add_typer(group, name=callback.__name__)
    return group


app = _group()
app.callback()(ostraka)
app.command(cls=_Command)(train.demo)
app.command(cls=_Command)(train.train)
app.command(cls=_Command)(compare.compare)
_subgroup(data.data, get=data.get, list=data.list_all)
app.command(cls=_Command)(init.init)
app.command(cls=_Command)(init.sign)
_enclave = _subgroup(enclave.enclave, run=enclave.run, evidence=enclave.evidence)
_subgroup(
    enclave_migrate.migrate,
    _enclave,
    request=enclave_migrate.request,
    export=enclave_migrate.export,
    **{"import": enclave_migrate.take_over},
)
app.command(cls=_Command)(enclave.status)
_subgroup(worker.worker, run=worker.run, enrol=worker.enrol)
_subgroup(
    client.client,
    enrol=client.enrol,
    fetch=client.fetch,
    submit=client.submit,
)
_subgroup(attest.attest, show=attest.show_evidence, verify=attest.verify, measure=attest.measure)
app.command(cls=_Command)(leakage.leakage)
_subgroup(bench.bench, None, **bench.COMMANDS)
