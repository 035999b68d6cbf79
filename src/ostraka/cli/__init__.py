"""The command `ostraka`: the only place that prints or exits.

Figures go to stdout. With --json they are one object on one line, the last on stdout, and
everything else goes to stderr. Exit codes: 0 done; 1 failed, or an attacker was averaged in;
2 the request cannot work; 130 interrupted.
"""

import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from ostraka.cli import bench, demo, leakage
from ostraka.cli.output import help_without_command, plain_warnings
from ostraka.errors import ConfigError, OstrakaError

_FAILED = 1
_IMPOSSIBLE = 2
_TERMINATED = 143


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
            code = _IMPOSSIBLE if isinstance(error, ConfigError) else _FAILED
            raise typer.Exit(code) from None


def main() -> None:
    # As an exit, so that files and processes of a benchmark are cleared away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
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


app = _group()
app.callback()(ostraka)
app.command(cls=_Command)(demo.demo)
app.command(cls=_Command)(leakage.leakage)
_bench = _group()
_bench.callback()(bench.bench)
_bench.command(cls=_Command)(bench.kernels)
_bench.command(cls=_Command)(bench.calibrate)
app.add_typer(_bench, name="bench")
