"""What the documents say is true: commands exist, help is as shown, and named tests are there."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.enclave import __main__ as enclave

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
HELP_BLOCKS = re.findall(r"\$ ostraka ([a-z ]*)--help\n(.*?)```", README, re.DOTALL)


def test_there_are_help_blocks():
    assert HELP_BLOCKS


@pytest.mark.parametrize(("command", "shown"), HELP_BLOCKS)
def test_help_is_as_the_readme_shows_it(command, shown):
    result = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="ostraka")
    assert result.exit_code == 0
    assert words(result.stdout) == words(shown)


def words(text):
    """Terminals differ in width, and break lines behind hyphens."""
    return re.sub(r"-\n\s+", "-", text).split()


def test_every_command_in_the_readme_exists():
    commands = re.findall(r"^\$ ostraka (\w+(?: \w+)?)", README, re.MULTILINE)
    assert commands
    for command in commands:
        assert help_ends_with(command.split()) == 0, command


def help_ends_with(command):
    """The exit code of --help. `ostraka enclave` becomes a program of its own, which is asked."""
    if command[0] != "enclave":
        return CliRunner().invoke(app, [*command, "--help"]).exit_code
    with pytest.raises(SystemExit) as ended:
        enclave.main([*command[1:], "--help"])
    return ended.value.code


def test_the_readme_s_example_runs_as_typed():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(example, names)
    result = names["result"]
    assert result.aggregate.shape == (10_000,)
    assert result.aggregate.dtype == np.float32
    assert set(result.rejected) == {7}
    assert 0 < result.weights[3] < 1e-3
    assert result.weights[7] == 0
    assert 7 not in result.selected


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_a_document_names_exist(document):
    sources = "\n".join(path.read_text() for path in ROOT.glob("tests/**/*.py"))
    named = re.findall(r"`(test_\w+)`", document.read_text())
    missing = [name for name in named if f"def {name}(" not in sources]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing
