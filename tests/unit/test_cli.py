"""The command line: what it prints where, and how it ends."""

import dataclasses
import json
import math
import subprocess
import sys

import click
import pytest
import typer
from typer.testing import CliRunner

from ostraka.bench.stages import STAGES
from ostraka.cli import app
from ostraka.errors import RoundFailed, ServiceError

COMMANDS = ["", "demo", "leakage", "bench", "bench kernels"]
SMALL = "--clients 7 --byzantine 2 --dim 200 --rounds 2 --masking none"


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
        "ostraka: Multi-Krum needs n >= 2f + 3 clients; got n=4, f=3: "
        "take at least 9 clients, or f at most 0\n"
    )


MISTAKES = {
    "an option that does not exist": ("demo --attck nan", "Did you mean '--attack'?"),
    "a command that does not exist": ("dmo", "Did you mean 'demo'?"),
    "a value that does not exist": ("demo --attack flattery", "'sign-flip', 'scale'"),
    "a masking that does not exist": ("demo --masking tape", "'gaussian'"),
    "a stage that does not exist": ("bench kernels --only ceiling", "'floor'"),
    "no number": ("leakage --dim many", "'many' is not a valid int"),
    "a missing option": ("leakage", "Missing option '--dim'"),
    "too many attackers": ("demo --byzantine 5", "Krum needs n >= 2f + 3 clients; got n=12, f=5"),
    "no dimension": ("leakage --dim 0", "positive and finite; got 0"),
    "a sigma below zero": ("leakage --dim 10 --sigma -1", "positive and finite; got -1"),
    "a precision of nothing": ("leakage --dim 10 --precision 0", "precision must be positive"),
    "too few clients": ("bench kernels --clients 2 --dim 10", "Krum needs n >= 2f + 3"),
    "more than fits": ("bench kernels --clients 2000 --dim 20000000", "GiB of memory"),
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_explained_and_exit_with_2(line, message):
    result = run(line)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.fixture
def stage(monkeypatch, play_demo):
    """stage(change): run the demo without its processes, and change its rounds."""

    def replace(change=lambda one: one):
        def run(settings, *, keep, tell):
            return (change(each) for each in play_demo(settings))

        monkeypatch.setattr("ostraka.cli.demo.run", run)

    return replace


@pytest.fixture
def fail(monkeypatch):
    """fail(error): let the demo begin, and end like this."""

    def replace(error):
        def run(settings, *, keep, tell):
            yield from ()
            raise error

        monkeypatch.setattr("ostraka.cli.demo.run", run)

    return replace


@pytest.mark.parametrize("error", [RoundFailed("nobody came"), ServiceError("nobody came")])
def test_a_demo_that_fails_says_why_and_exits_with_1(fail, error):
    fail(error)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == "ostraka: nobody came\nTo keep all logs: --keep FOLDER\n"
    assert result.stdout == ""


def test_logs_that_are_kept_are_named(fail):
    fail(ServiceError("nobody came"))
    assert run("demo --keep looked").stderr.endswith("\nAll logs are in looked/logs.\n")


def test_an_interruption_is_quiet_and_exits_with_130(fail):
    fail(KeyboardInterrupt())
    result = run("demo")
    assert result.exit_code == 130
    assert result.output == ""


def test_rounds_that_were_over_before_an_interruption_are_shown(stage):
    def second(one):
        if one.number == 2:
            raise KeyboardInterrupt
        return one

    stage(second)
    result = run(f"demo {SMALL} --json")
    assert result.exit_code == 130
    assert last_line_only(result)["rounds"] == 1


def test_the_demo_prints_one_object_and_everything_else_on_stderr(stage):
    stage()
    result = run(f"demo {SMALL} --json")
    assert result.exit_code == 0
    figures = last_line_only(result)
    assert figures["rounds"] == 2
    assert figures["masking"] == "none"
    assert figures["simulated"] is True
    assert figures["byzantine_selected"] == 0
    assert figures["max_relative_difference"] < 1e-6
    assert figures["ostraka_error"] < 1e-6
    assert figures["plain_error"] > 1
    assert "Attackers: 3 (nan), 7 (sign-flip)." in result.stderr


def test_the_demo_tells_people_who_was_left_out_and_why(stage):
    stage()
    result = run(f"demo {SMALL} --attack nan")
    assert result.exit_code == 0
    assert "No attacker was averaged in." in result.stdout
    assert "its stated norm is not possible" in result.stdout
    assert result.stderr == ""


def test_the_demo_says_in_one_line_that_nothing_protects_it(stage):
    stage()
    lines = run(f"demo {SMALL}").stdout.splitlines()
    assert any("No TEE protects this run" in line for line in lines)


def test_the_demo_says_who_measures_and_why(stage):
    stage()
    words = run(f"demo {SMALL} --masking exact --distances auto").stdout
    assert "Automatic: distances inside the enclave" in words


def test_an_attacker_that_was_averaged_in_fails_the_demo(stage):
    stage(lambda one: dataclasses.replace(one, selected=tuple(one.attackers)))
    result = run(f"demo {SMALL} --json")
    assert result.exit_code == 1
    assert last_line_only(result)["byzantine_selected"] == 4


def test_a_figure_that_is_no_number_is_null(stage):
    stage(lambda one: dataclasses.replace(one, plain_left=math.nan))
    assert last_line_only(run(f"demo {SMALL} --json"))["plain_left"] is None


def test_a_leaky_masking_warns_once_in_one_line(stage):
    stage()
    result = run(f"demo {SMALL.replace('none', 'gaussian')}")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: Gaussian masking")
    assert "polar attack" in line


def test_a_folder_that_is_not_empty_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "thesis.txt").touch()
    result = run(f"demo {SMALL} --keep {tmp_path}")
    assert result.exit_code == 2
    assert "is not empty" in result.stderr


def test_leakage_states_bound_sigma_error_and_verdict():
    result = run("leakage --dim 3500000 --json")
    assert result.exit_code == 0
    figures = last_line_only(result)
    assert figures["bound_bits"] == figures["budget_bits"] == 1e-3
    assert figures["sigma"] == figures["sigma_for_budget"] > 0
    assert 0 < figures["distance_error"] < figures["precision"]
    assert figures["met"] is True
    assert "independent noise" in result.stderr
    assert "polar attack" in result.stderr


def test_float32_cannot_meet_both_demands():
    result = run("leakage --dim 3500000 --dtype float32")
    assert result.exit_code == 0
    assert "Not met: the precision, in float32" in result.stdout


def test_a_sigma_of_ones_own_is_judged_against_the_budget():
    needed = last_line_only(run("leakage --dim 1000 --json"))["sigma"]
    less = last_line_only(run(f"leakage --dim 1000 --sigma {needed / 2} --json"))
    assert less["bound_bits"] == pytest.approx(4e-3, rel=0.01)
    assert less["sigma_for_budget"] == needed
    assert less["met"] is False


def test_sigma_has_the_unit_of_the_clip_norm():
    one, seven = (
        last_line_only(run(f"leakage --dim 1000 --clip-norm {norm} --json")) for norm in (1, 7)
    )
    assert seven["sigma"] == pytest.approx(7 * one["sigma"])
    assert seven["distance_error"] == pytest.approx(one["distance_error"])


def test_kernels_prints_one_object_with_every_stage():
    result = run("bench kernels --clients 8 --dim 20000 --repeat 1 --json")
    assert result.exit_code == 0
    figures = last_line_only(result)
    assert set(figures["stages"]) == set(STAGES)
    assert figures["threads"] == 1
    assert 0 < figures["enclave_rss_mib"] < 512


def test_kernels_prints_a_table_for_people():
    result = run("bench kernels --clients 8 --dim 1000 --repeat 1 --only floor")
    assert result.exit_code == 0
    assert "floor" in result.stdout
    assert "{" not in result.stdout
