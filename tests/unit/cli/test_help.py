"""Every command explains itself, and every example in a help text can be typed."""

from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.cli.exit_codes import exit_code
from ostraka.errors import AttestationRefused, ConfigError, PlatformError, Refusal, RoundFailed


def commands(command: click.Command, *path: str) -> Iterator[str]:
    yield " ".join(path)
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(each, *path, name)


ALL = list(commands(typer.main.get_command(app)))


def help_of(command):
    return CliRunner().invoke(app, [*command.split(), "--help"], prog_name="ostraka")


def test_the_commands_of_this_release_are_there():
    expected = {"init", "sign", "client enrol", "attest show", "attest verify", "attest measure"}
    assert expected <= set(ALL)


@pytest.mark.parametrize("command", ALL)
def test_help_is_plain_text_with_examples_that_parse(command):
    result = help_of(command)
    assert result.exit_code == 0
    assert "\\[" not in result.stdout
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    start = lines.index("  Examples:") + 1
    text = "\n".join(lines[start : lines.index("", start)]).replace("\\\n", " ")
    examples = [line.split() for line in text.splitlines()]
    assert examples
    for program, *arguments in examples:
        assert program == "ostraka"
        assert " ".join(arguments).startswith(command)
        parse(typer.main.get_command(app), arguments)


def parse(command, arguments):
    """Raises UsageError for what would not run."""
    name = None
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(click.Context(command), arguments)
    command.make_context(name, arguments)


@pytest.mark.parametrize("command", ALL)
def test_every_option_says_what_it_is_for(command):
    found: click.Command = typer.main.get_command(app)
    for name in command.split():
        assert isinstance(found, click.Group)
        found = found.commands[name]
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_exit_codes_tell_the_kinds_of_failure_apart():
    assert exit_code(RoundFailed("x")) == 1
    assert exit_code(PlatformError("x")) == 1
    assert exit_code(ConfigError("x")) == 2
    assert exit_code(AttestationRefused(Refusal.DEBUG)) == 3


def test_the_exit_codes_of_verify_are_in_its_help():
    text = " ".join(help_of("attest verify").stdout.split())
    assert "0 accepted; 1 failed; 2 the files or arguments cannot be used; 3 refused" in text
