"""The command `ostraka`: the only place that prints or exits.

Figures go to stdout. With --json they are one object on one line, the last on stdout, and
everything else goes to stderr. The exit codes are in `ostraka.errors`.

A command is listed here by one line and loaded when it is called. The lab, which nothing here
imports, adds its commands by entry points of the group "ostraka.commands".
"""

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any

import click
import typer

from ostraka import __version__
from ostraka.cli.lazy import Command, Group, LazyGroup, help_without_command
from ostraka.errors import INTERRUPTED, TERMINATED, LeakyMasking, OstrakaError, exit_code

# gRPC reads this when it is loaded. What it would log is about its own source code.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_ENTRY_POINTS = "ostraka.commands"

_WORKER = Group(
    """Measure masked updates for an enclave.

    \b
    Examples:
      ostraka worker enrol --name worker-1 --out keys/worker-1.key
      ostraka worker run --enclave 10.0.0.5:7420 --name worker-1 --key keys/worker-1.key
    """,
    {
        "run": Command("ostraka.cli.worker:run", "Serve an enclave until stopped."),
        "enrol": Command(
            "ostraka.cli.init:enrol_worker", "Make a key, and print the lines that enrol it."
        ),
    },
)

_CLIENT = Group(
    """Take part in a federation.

    \b
    Examples:
      ostraka client enrol --name hospital-a
      ostraka client fetch --enclave fl:7420 --name a --key a.key --policy p.toml --out m.st
      ostraka client submit w.st --enclave fl:7420 --name a --key a.key --policy p.toml --base m.st
    """,
    {
        "enrol": Command(
            "ostraka.cli.init:enrol_client", "Make a key, and print the lines that enrol it."
        ),
        "fetch": Command("ostraka.cli.client:fetch", "Get the model of the open round."),
        "submit": Command(
            "ostraka.cli.client:submit", "Send an update, and wait for the round's receipt."
        ),
        "confirm": Command(
            "ostraka.cli.voting:confirm", "Confirm outcomes until stopped, without taking part."
        ),
        "testify": Command(
            "ostraka.cli.voting:give_testimony",
            "Say how this client voted in the open round, because the enclave's state was lost.",
        ),
        "rejoin": Command(
            "ostraka.cli.voting:rejoin",
            "Take part again behind an abandoned round, by your own word.",
        ),
    },
)

_WITNESS = Group(
    """Confirm outcomes, and see nothing of them.

    \b
    Examples:
      ostraka witness enrol --name auditor
      ostraka witness run --enclave fl:7420 --name auditor --key auditor.key --policy policy.toml
    """,
    {
        "run": Command(
            "ostraka.cli.voting:run_witness", "Confirm each outcome once, until stopped."
        ),
        "enrol": Command(
            "ostraka.cli.init:enrol_witness", "Make a key, and print the lines that enrol it."
        ),
    },
)

_OBSERVER = Group(
    """See a federation's status with its names, and take no part.

    \b
    Examples:
      ostraka observer enrol --name dashboard
    """,
    {
        "enrol": Command(
            "ostraka.cli.init:enrol_observer",
            "Make a key, and print the lines that let it observe.",
        ),
    },
)

_ATTEST = Group(
    """Read and verify the evidence by which an enclave proves itself.

    \b
    Examples:
      ostraka attest show evidence.bin
      ostraka attest verify evidence.bin --policy policy.toml
      ostraka attest measure
      ostraka attest expect dist/*.whl
    """,
    {
        "show": Command(
            "ostraka.cli.attest:show_evidence", "Say in plain words what evidence says."
        ),
        "verify": Command("ostraka.cli.attest:verify", "Verify evidence against a policy."),
        "measure": Command(
            "ostraka.cli.attest:measure", "Print the measurement to expect of this release."
        ),
        "expect": Command(
            "ostraka.cli.expect:expect",
            "Print the measurement to expect of a wheel, an environment or an image.",
        ),
    },
)

COMMANDS: dict[str, Command | Group] = {
    "init": Command("ostraka.cli.init:init", "Make a federation's folder for a first run."),
    "sign": Command(
        "ostraka.cli.init:sign", "Sign a federation's terms and roster again, after a change."
    ),
    "rules": Command(
        "ostraka.cli.rules:rules",
        "List the aggregation rules: how many clients each needs, and what else.",
    ),
    "enclave": Command(
        "ostraka.cli.enclave:enclave",
        "Run the enclave's service, or hand its state to a successor.",
        passes_on=True,
    ),
    "worker": _WORKER,
    "client": _CLIENT,
    "witness": _WITNESS,
    "abandon": Command(
        "ostraka.cli.voting:abandon",
        "Give up the round of an enclave whose state was lost, so that a new one can go on.",
    ),
    "status": Command(
        "ostraka.cli.status:status",
        "Show where a federation stands: the round, who is in, who was refused and why.",
    ),
    "observer": _OBSERVER,
    "dashboard": Command(
        "ostraka.cli.dashboard:dashboard",
        "Show a running federation as a live page.",
        extra="dashboard",
    ),
    "attest": _ATTEST,
    "leakage": Command("ostraka.cli.leakage:leakage", "Print what Gaussian masks leak, and cost."),
}


class _Root(LazyGroup):
    """The whole command. It turns deliberate errors and warnings into one line each."""

    def __init__(self, **attributes: Any) -> None:
        # Ours come first, and cannot be replaced.
        super().__init__(entries=COMMANDS | _added() | COMMANDS, **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _plain_warnings():
                return super().invoke(ctx)
        except OstrakaError as error:
            click.echo(f"ostraka: {error}", err=True)
            raise typer.Exit(exit_code(error)) from None


@cache
def _added() -> dict[str, Command | Group]:
    """Find what installed distributions add: each entry point is a `Command` or a `Group`.

    One that does not load is named on stderr, and the other commands go on.
    """
    added: dict[str, Command | Group] = {}
    for each in entry_points(group=_ENTRY_POINTS):
        try:
            command = each.load()
        except Exception as broken:  # noqa: BLE001 (another's code may raise anything)
            command = broken
        if isinstance(command, Command | Group):
            added[each.name] = command
        else:
            click.echo(f"ostraka: the command {each.name!r} does not load: {command}", err=True)
    return added


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show that a masking leaks once, in one line. Other warnings are shown as ever."""
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


def _show_version(wanted: bool) -> None:
    if wanted:
        loops = import_module("ostraka.core.loops")  # with numpy, which nothing else here needs
        click.echo(f"ostraka {__version__}, loops: {loops.kind()}")
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
      ostraka leakage --dimension 3500000
      ostraka bench kernels --clients 64 --dimension 3500000
    """
    help_without_command(ctx)


app = typer.Typer(
    cls=_Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # Click makes suggestions by itself.
    suggest_commands=False,
)
app.callback()(ostraka)


def main() -> None:
    """Run the command."""
    signal.signal(signal.SIGTERM, _end)
    try:
        app(prog_name="ostraka")
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            # A second Ctrl-C would find an interpreter that ends, and has no handler any more.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise


def _end(*_: Any) -> None:
    """End as by an exit, so that files and processes are cleared away.

    Once is enough: a second signal, as `timeout` sends it, would break off what the first began.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(TERMINATED)
