"""Every command explains itself, and every example in a help text can be typed."""

from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.cli.lazy import Command, LazyGroup, load
from ostraka.errors import (
    AttestationRefused,
    ConfigError,
    PlatformError,
    Refusal,
    RoundFailed,
    exit_code,
)

ROOT = typer.main.get_command(app)


def entries(group, *path: str) -> Iterator[tuple[tuple[str, ...], Command | None]]:
    """Every command and what it is listed by. A group, and the whole, have no Command.

    `ostraka enclave` only becomes the enclave's own entry, which tests/unit/enclave tests.
    """
    yield path, None
    for name, entry in group.entries.items():
        if not isinstance(entry, Command):
            yield from entries(load(name, entry), *path, name)
        elif not entry.passes_on:
            yield (*path, name), entry


LISTED = {" ".join(path): entry for path, entry in entries(ROOT)}
LOADED = {name: entry for name, entry in LISTED.items() if entry}


def found(command: str) -> click.Command:
    now: click.Command = ROOT
    for name in command.split():
        assert isinstance(now, LazyGroup)
        now = load(name, now.entries[name])
    return now


def help_of(command):
    return CliRunner().invoke(app, [*command.split(), "--help"], prog_name="ostraka")


def test_the_commands_of_this_release_are_there():
    expected = {
        *("init", "sign", "status", "rules", "leakage", "worker run", "worker enrol"),
        *("client enrol", "client fetch", "client submit"),
        *("client confirm", "client testify", "client rejoin"),
        *("witness enrol", "witness run", "abandon", "observer enrol", "dashboard"),
        *("attest show", "attest verify", "attest measure", "attest expect"),
        *("demo", "train", "compare", "data get", "data list"),
        *("bench paper", "bench peers", "bench scale", "bench leakage", "bench check"),
        *("bench confirm", "bench rules", "bench kernels", "bench service", "bench calibrate"),
        "bench ray",
    }
    assert expected == set(LOADED)


@pytest.mark.parametrize("command", LISTED)
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
        parse(arguments)


def parse(arguments):
    """Raises UsageError for what would not run."""
    name: str | None = None
    command: click.Command | None = ROOT
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(click.Context(command), arguments)
    assert command is not None
    command.make_context(name, arguments)


@pytest.mark.parametrize(("command", "entry"), LOADED.items())
def test_the_line_that_lists_a_command_is_the_first_of_its_help(command, entry):
    text = found(command).help
    assert text is not None
    assert entry.help == text.splitlines()[0]


@pytest.mark.parametrize("command", LISTED)
def test_every_option_says_what_it_is_for(command):
    for parameter in found(command).params:
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
