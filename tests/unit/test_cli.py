"""The command line: what it prints where, and how it ends."""

import json
import subprocess
import sys

import click
import pytest
import typer
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka_lab.bench.kernels import STAGES

COMMANDS = ["", "demo", "train", "compare", "data", "data get", "leakage", "bench", "bench kernels"]


def run(line):
    return CliRunner().invoke(app, line.split(), prog_name="ostraka")


def examples(command):
    lines = run(f"{command} --help").stdout.splitlines()
    start = lines.index("  Examples:") + 1
    return [line.strip() for line in lines[start : lines.index("", start)]]


def last_line_only(result):
    (line,) = result.stdout.splitlines()
    return json.loads(line)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_examples_that_parse(command):
    assert examples(command)
    for example in examples(command):
        program, *arguments = example.split()
        assert program == "ostraka"
        assert f"{command} " in f"{' '.join(arguments)} "
        found: click.Command | None = typer.main.get_command(app)
        while isinstance(found, click.Group):
            name, found, arguments = found.resolve_command(click.Context(found), arguments)
        assert found is not None
        found.make_context(name, arguments)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain_text(command):
    result = run(f"{command} -h")
    assert result.exit_code == 0
    assert "\\[" not in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("command", ["", "bench"])
def test_a_group_without_a_command_shows_its_help(command):
    result = run(command)
    assert result.exit_code == 0
    assert result.stdout == run(f"{command} --help").stdout


def test_the_version_is_shown():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("ostraka")


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "ostraka", "demo", "--clients", "4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ostraka: arc+nnm+geometric-median needs at least 8 clients; got n=4, f=3: "
        "take at least 8 clients, or f at most 1\n"
    )


MISTAKES = {
    "an option that does not exist": ("demo --attck nan", "Did you mean one of: '--attack'"),
    "a command that does not exist": ("dmo", "Did you mean 'demo'?"),
    "an attack that does not exist": (
        "demo --attack sign-flipp",
        "did you mean sign-flip? known: alie, ",
    ),
    "a model that does not exist": ("train --model mobilenet", "did you mean mobilenetv"),
    "a data set that does not exist": (
        "train --dataset minst",
        "did you mean mnist? known: cifar10, digits, ",
    ),
    "a defence that does not exist": ("compare --defence prayer", "Known: mean, multi-krum"),
    "a masking that does not exist": ("demo --masking tape", "'gaussian'"),
    "a stage that does not exist": ("bench kernels --only ceiling", "'floor'"),
    "no number": ("leakage --dimension many", "'many' is not a valid int"),
    "a missing option": ("leakage", "Missing option '--dimension'"),
    "too many attackers": ("demo --byzantine 6", "needs at least 14 clients; got n=12, f=6"),
    "no dimension": ("leakage --dimension 0", "positive and finite; got 0"),
    "a sigma below zero": ("leakage --dimension 10 --sigma -1", "positive and finite; got -1"),
    "a precision of nothing": (
        "leakage --dimension 10 --precision 0",
        "precision must be positive",
    ),
    "too few clients": (
        "bench kernels --clients 1 --dimension 10",
        "needs at least 2 clients",
    ),
    "more than fits": ("bench kernels --clients 2000 --dimension 20000000", "GiB of memory"),
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_explained_and_exit_with_2(line, message):
    result = run(line)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_leakage_states_bound_sigma_error_and_verdict():
    result = run("leakage --dimension 3500000 --json")
    assert result.exit_code == 0
    figures = last_line_only(result)
    assert figures["bound_bits"] == figures["budget_bits"] == 1e-3
    assert figures["sigma"] == figures["sigma_for_budget"] > 0
    assert 0 < figures["distance_error"] < figures["precision"]
    assert figures["met"] is True
    assert "independent noise" in result.stderr
    assert "polar attack" in result.stderr


def test_float32_cannot_meet_both_demands():
    result = run("leakage --dimension 3500000 --dtype float32")
    assert result.exit_code == 0
    assert "Not met: the precision, in float32" in result.stdout


def test_a_sigma_of_ones_own_is_judged_against_the_budget():
    needed = last_line_only(run("leakage --dimension 1000 --json"))["sigma"]
    less = last_line_only(run(f"leakage --dimension 1000 --sigma {needed / 2} --json"))
    assert less["bound_bits"] == pytest.approx(4e-3, rel=0.01)
    assert less["sigma_for_budget"] == needed
    assert less["met"] is False


def test_sigma_has_the_unit_of_the_clip_norm():
    one, seven = (
        last_line_only(run(f"leakage --dimension 1000 --clip-norm {norm} --json"))
        for norm in (1, 7)
    )
    assert seven["sigma"] == pytest.approx(7 * one["sigma"])
    assert seven["distance_error"] == pytest.approx(one["distance_error"])


def test_kernels_prints_one_object_with_every_stage():
    result = run("bench kernels --clients 8 --dimension 20000 --repeat 1 --json")
    assert result.exit_code == 0
    figures = last_line_only(result)
    assert set(figures["stages"]) == set(STAGES)
    assert figures["threads"] == 1
    assert 0 < figures["enclave_rss_mib"] < 512


def test_kernels_prints_a_table_for_people():
    result = run("bench kernels --clients 8 --dimension 1000 --repeat 1 --only floor")
    assert result.exit_code == 0
    assert "floor" in result.stdout
    assert "{" not in result.stdout
