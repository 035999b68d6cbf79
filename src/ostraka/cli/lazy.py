"""Commands that are listed by one line each and loaded when they are called.

Help and shell completion of a group need the lines only, so that they import neither numpy nor
grpc. `RENAMED` and `extra` hold for every command alike.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ostraka.errors import ConfigError, installing

# Options of earlier releases, which are refused with what they are called now.
RENAMED = {
    "--dim": "--dimension",
    "--enclave-key": "--receipt-key",
    "--unsafe-simulate": "--unsafe-simulation",
}

_PASSES_ON: dict[str, Any] = {"ignore_unknown_options": True, "help_option_names": []}


@dataclass(frozen=True)
class Command:
    """A function that becomes a command.

    target: "module:function". help: the first line of its docstring. extra: the extra of this
    distribution that installs what the command imports. passes_on: the function takes every
    argument as it is, --help among them, and hands it to another program.
    """

    target: str
    help: str
    extra: str | None = None
    passes_on: bool = False


@dataclass(frozen=True)
class Group:
    """Commands under one name. help: the whole text of its --help."""

    help: str
    commands: Mapping[str, "Command | Group"]


class _Plain(click.Command):
    """Shows help as it stands: typer escapes brackets in it for rich."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")


class _LoadedCommand(_Plain, TyperCommand):
    """Refuses a renamed option with its new name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            new = RENAMED.get(unknown.option_name)
            if not any(new in each.opts for each in self.params):
                raise
            said = f"no such option {unknown.option_name}: it is {new} now"
            raise click.UsageError(said, ctx) from None


class LazyGroup(_Plain, TyperGroup):
    """A group that lists its commands without loading them."""

    def __init__(self, *, entries: Mapping[str, Command | Group], **attributes: Any) -> None:
        listed = {name: click.Command(name, help=each.help) for name, each in entries.items()}
        super().__init__(**attributes | {"commands": listed})
        self.entries = entries

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Load the command that these arguments name. Help and completion list it unloaded."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(str(name), self.entries[str(name)]), rest


def load(name: str, entry: Command | Group) -> click.Command:
    """Make a command of what it is listed by. Raises ConfigError if an extra is missing."""
    if isinstance(entry, Group):
        return LazyGroup(
            name=name,
            entries=entry.commands,
            help=inspect.cleandoc(entry.help),
            callback=click.pass_context(help_without_command),
            invoke_without_command=True,
            rich_markup_mode=None,
            suggest_commands=False,
        )
    module, function = entry.target.split(":")
    with _naming(entry.extra):
        callback = getattr(import_module(module), function)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = _PASSES_ON if entry.passes_on else None
    alone.command(name, cls=_LoadedCommand, context_settings=settings)(
        _naming(entry.extra)(callback)
    )
    return get_command(alone)


def help_without_command(ctx: click.Context) -> None:
    """Show a group's help if none of its commands was named."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        raise typer.Exit


@contextmanager
def _naming(extra: str | None) -> Iterator[None]:
    """Say which extra installs a package that is missing, instead of where it was imported."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if extra is None or (missing.name or "ostraka").startswith("ostraka"):
            raise
        raise ConfigError(
            f"this needs the extra {extra!r} (the package {missing.name!r} is missing): "
            f"{installing(extra)}"
        ) from None
