"""A command is loaded when it is called: what help, completion and mistakes load, and say."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

import ostraka
from ostraka.cli import _added, app, lazy
from ostraka.cli.enclave import WORDS
from ostraka.cli.lazy import RENAMED, Command, Group, LazyGroup
from ostraka.core import loops
from ostraka.enclave import __main__ as enclave

SOURCE = Path(ostraka.__file__).parents[1]
PROJECT = SOURCE.parent / "pyproject.toml"
LIGHT = {"click", "typer", "shellingham"}
HEAVY = {"numpy", "grpc", "cryptography"}
LAB = {"demo", "train", "compare", "data", "bench"}

# Runs the command, and then says on stderr what it has loaded.
PROBE = """
import json, sys
before = set(sys.modules)
sys.argv = ["ostraka", *sys.argv[1:]]
try:
    import ostraka.cli
    ostraka.cli.main()
finally:
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(json.dumps(sorted(loaded - sys.stdlib_module_names)), file=sys.stderr)
"""


def start(*arguments, **environment):
    """The command in a fresh interpreter: what it printed, and which packages it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1])) - {"ostraka", "ostraka_lab"}


def complete(*words, shell="bash"):
    """What the shell is offered for the last of these words."""
    return start(
        _OSTRAKA_COMPLETE=f"complete_{shell}",
        COMP_WORDS=" ".join(["ostraka", *words]),
        COMP_CWORD=str(len(words)),
        _TYPER_COMPLETE_ARGS=" ".join(["ostraka", *words]),
    )


def run(*arguments):
    return CliRunner().invoke(app, arguments, prog_name="ostraka")


@pytest.mark.parametrize("line", ["--help", "", "client --help", "worker", "bench --help", "data"])
def test_help_loads_no_command(line):
    shown, loaded = start(*line.split())
    assert shown
    assert loaded <= LIGHT


def test_the_probe_would_see_what_a_command_loads():
    _, loaded = start("leakage", "--dimension", "1000")
    assert "numpy" in loaded


def test_importing_the_package_loads_nothing_else():
    program = "import sys, ostraka; print([name for name in sys.modules if 'ostraka.' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_the_package_s_names_are_there_when_they_are_used():
    assert {"Client", "RoundResult", "errors", "run_round"} < set(dir(ostraka))
    for name in ostraka.__all__:
        assert getattr(ostraka, name) is not None


def test_the_version_is_that_of_the_package_with_the_loops_that_run():
    assert run("--version").stdout == f"ostraka {ostraka.__version__}, loops: {loops.kind()}\n"


# The lab.


def test_the_lab_s_commands_are_entry_points_and_listed():
    points = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["ostraka.commands"]
    assert set(points) == LAB
    assert {f"ostraka_lab.commands:{name.upper()}" for name in LAB} == set(points.values())
    assert set(_root().entries) > LAB


def test_what_is_added_cannot_replace_a_command_of_ours(monkeypatch):
    other = Command("elsewhere:init", "Something else.")
    monkeypatch.setattr("ostraka.cli._added", lambda: {"init": other, "extra": other})
    assert _root().entries["init"].target == "ostraka.cli.init:init"
    assert _root().entries["extra"] is other


# Python runs it at its start, if it is on its path: these packages are then not to be found.
WITHOUT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_others(name, path=None, target=None):
    return None if name in ("matplotlib", "sklearn", "torch") else find(name, path, target)

PathFinder.find_spec = find_others
"""


def without_extra(line, folder):
    (folder / "sitecustomize.py").write_text(WITHOUT)
    return subprocess.run(
        [sys.executable, "-m", "ostraka", *line.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{SOURCE}"},
        capture_output=True,
        check=False,
        text=True,
    )


@pytest.mark.parametrize("line", ["train", "demo", "compare", "bench paper --quick"])
def test_a_missing_extra_is_named_when_a_command_needs_it(line, tmp_path):
    done = without_extra(line, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ostraka: this needs the extra 'lab' (the package 'torch' is missing): in a clone, "
        "pip install -c constraints.txt -e '.[lab]'; from a wheel, "
        "pip install 'THE-WHEEL.whl[lab]'\n"
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--help", "train "),
        ("train --help", "Usage: ostraka train"),
        ("bench kernels --help", "Usage: ostraka bench kernels"),
        ("data list", "needs scikit-learn"),
    ],
)
def test_what_needs_no_extra_works_without_it(line, shown, tmp_path):
    done = without_extra(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_the_digits_come_with_the_extra(tmp_path):
    done = without_extra("data get digits", tmp_path)
    assert done.returncode == 2
    assert "pip install -c constraints.txt -e '.[lab]'" in done.stderr


def test_a_module_of_ours_that_is_missing_is_no_missing_extra():
    broken = Command("ostraka_lab.nothing:here", "Something.", extra="lab")
    with pytest.raises(ModuleNotFoundError):
        lazy.load("broken", broken)


# Completion.


def test_commands_are_completed_without_loading_them():
    shown, loaded = complete("")
    assert set(shown.split()) == set(_root().entries)
    assert loaded <= LIGHT


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["cl"], {"client"}),
        (["client", ""], {"enrol", "fetch", "submit", "confirm", "testify", "rejoin"}),
        (["client", "f"], {"fetch"}),
        (["bench", "ca"], {"calibrate"}),
        (["data", ""], {"get", "list"}),
        (["enclave", ""], {"run", "shard", "evidence", "migrate"}),
        (["enclave", "migrate", ""], {"request", "export", "import"}),
        (["--vers"], {"--version"}),
    ],
)
def test_words_are_completed_without_numpy(words, offered):
    shown, loaded = complete(*words)
    assert set(shown.split()) == offered
    assert not loaded & HEAVY


@pytest.mark.parametrize(("group", "words"), WORDS.items())
def test_the_words_of_the_enclave_are_those_of_its_entry(group, words, capsys):
    with pytest.raises(SystemExit):
        enclave.main([*group, "--help"])
    listed = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert tuple(listed) == words


def test_options_of_a_command_are_completed():
    shown, _ = complete("leakage", "--dim")
    assert shown.split() == ["--dimension"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_what_a_command_is_for(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    shown, loaded = complete("cli", shell=shell)
    assert "client" in shown
    assert "Take part in a federation." in shown
    assert not loaded & HEAVY


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_and_installed(shell, tmp_path):
    """The script that is installed asks this program, in the way that is tested above."""
    environment = {
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    script, _ = start("--show-completion", shell, **environment)
    assert "_OSTRAKA_COMPLETE=complete_" in script
    said, loaded = start("--install-completion", shell, **environment)
    assert f"{shell} completion installed in {tmp_path}" in said
    assert not loaded & HEAVY
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_OSTRAKA_COMPLETE=complete_" in text for text in written)


# Old spellings.


@pytest.mark.parametrize("value", [["--dim", "5"], ["--dim=5"]])
def test_an_old_spelling_is_refused_with_the_new_one(value):
    result = run("leakage", *value)
    assert result.exit_code == 2
    assert "no such option --dim: it is --dimension now" in result.stderr
    assert result.stdout == ""


def test_every_command_refuses_every_old_spelling_of_its_options():
    refused = []
    for command in _commands(_root()):
        options = {word for parameter in command.params for word in parameter.opts}
        assert not options & set(RENAMED)
        for old in (old for old, new in RENAMED.items() if new in options):
            assert _refusal(command, old) == f"no such option {old}: it is {RENAMED[old]} now"
            refused.append((command.name, old))
    assert {("leakage", "--dim"), ("kernels", "--dim"), ("scale", "--dim")} < set(refused)
    assert ("run", "--enclave-key") in refused
    assert {("fetch", "--unsafe-simulate"), ("verify", "--unsafe-simulate")} < set(refused)


def test_a_spelling_that_never_was_is_not_explained_by_another_command_s():
    assert "it is --dimension now" not in run("sign", "--dim", "5").stderr


def _refusal(command, old):
    with pytest.raises(click.UsageError) as refused:
        command.make_context(command.name, [old])
    return refused.value.format_message()


def _root():
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    return root


def _commands(group):
    for name, entry in group.entries.items():
        if isinstance(entry, Group):
            yield from _commands(lazy.load(name, entry))
        elif not entry.passes_on:
            yield lazy.load(name, entry)


def test_a_command_that_does_not_load_leaves_the_others_alone(monkeypatch, capsys):
    """Another distribution's broken entry point is named, and no more."""
    broken = EntryPoint("abacus", "ostraka_abacus:COMMAND", "ostraka.commands")
    monkeypatch.setattr("ostraka.cli.entry_points", lambda group: [broken])
    assert _added.__wrapped__() == {}
    assert "the command 'abacus' does not load: No module named 'ostraka_abacus'" in (
        capsys.readouterr().err
    )
