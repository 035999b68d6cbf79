"""What the documents say is true: commands exist, help is as shown, and claims have a proof."""

import re
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ostraka import errors
from ostraka.cli import app
from ostraka.enclave import __main__ as enclave
from ostraka_lab.attacks import ATTACKS

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


SOURCES = "\n".join(path.read_text() for path in ROOT.glob("tests/**/*.py"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_a_document_names_exist(document):
    named = re.findall(r"`(test_\w+)`", document.read_text())
    missing = [name for name in named if f"def {name}(" not in SOURCES]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing


def prose(text):
    """A document on one line, without its blocks of code and the marks of quotations."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(re.sub(r"^> ?", "", text, flags=re.MULTILINE).split())


def table_rows(text):
    """The cells of all rows of all tables, without headings."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    rules = [n for n, row in enumerate(cells) if set("".join(row)) <= set("-:")]
    headings = {n + offset for n in rules for offset in (-1, 0)}
    return [row for n, row in enumerate(cells) if n not in headings]


def claimed():
    """Every claim of docs/claims.md: its document, its words, and what stands behind it.

    What stands behind words that claim nothing has no code span in it.
    """
    _, *sections = re.split(r"^## ", (ROOT / "docs/claims.md").read_text(), flags=re.MULTILINE)
    return [
        (section.split()[0], words.replace("\\|", "|"), behind)
        for section in sections
        for words, behind in table_rows(section)
    ]


CLAIMS = [each for each in claimed() if "`" in each[2]]


def test_there_are_claims():
    assert len(CLAIMS) > 40


@pytest.mark.parametrize(("document", "words", "behind"), claimed())
def test_a_claim_is_in_its_document(document, words, behind):
    assert " ".join(words.split()) in prose((ROOT / document).read_text())


@pytest.mark.parametrize(("document", "words", "behind"), CLAIMS)
def test_what_stands_behind_a_claim_exists(document, words, behind):
    for span in re.findall(r"`([^`]*)`", behind):
        assert exists(span), span


def exists(span):
    """Whether there is such a test, file of tests, make target, or command with these options."""
    if span.startswith("test_"):
        return f"def {span}(" in SOURCES
    if span.startswith("tests/"):
        return (ROOT / span).exists()
    if span.startswith("make "):
        return f"\n{span.removeprefix('make ')}:" in (ROOT / "Makefile").read_text()
    return span.startswith("ostraka ") and is_command(span.split()[1:])


def is_command(words):
    command: click.Command | None = typer.main.get_command(app)
    while isinstance(command, click.Group):
        try:
            _, command, words = command.resolve_command(click.Context(command), words)
        except click.UsageError:
            return False
    known = {option for each in command.params for option in each.opts} if command else set()
    return {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize(
    ("span", "is_there"),
    {
        "ostraka bench peers --only floor": True,
        "ostraka bench peers --ever floor": False,
        "ostraka bench piers": False,
        "ostraka rules --n 12": True,
        "test_there_are_claims": True,
        "test_there_are_no_claims": False,
        "tests/unit/test_docs.py": True,
        "tests/unit/test_books.py": False,
        "make soak": True,
        "make gold": False,
        "because we say so": False,
    }.items(),
)
def test_what_does_not_exist_is_seen(span, is_there):
    assert exists(span) is is_there


NUMBERS = re.compile(
    r"\d|\b(half|thirds?|quarters?|fifths?|tenths?|twice|times|dozens?|hundreds?|thousands?|"
    r"twelve|sixteen|eighteen|nineteen|twenty)\b"
)


def test_every_number_of_the_readme_is_in_a_claim():
    """Whatever is left of it without claims, code and addresses has no number."""
    left = prose(README)
    for document, words, _ in claimed():
        if document == "README.md":
            left = left.replace(" ".join(words.split()), " ")
    left = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", left)
    found = [left[max(0, n.start() - 60) : n.end() + 40] for n in NUMBERS.finditer(left)]
    assert not found


COUNTS = {"nineteen": 19, "twenty": 20}


def test_the_readme_counts_attacks_and_laws():
    attacks, laws = re.findall(r"(\w+) attacks, nearly|the (\w+) laws with", README)
    assert int(attacks[0]) == len(ATTACKS)
    numbers = re.findall(r"^\| (\d+) \|", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE)
    assert sorted(map(int, numbers)) == list(range(1, COUNTS[laws[1]] + 1))


def test_exit_codes_are_as_the_readme_says():
    (codes,) = re.findall(r"Exit codes: (.*?)\.\n", README, re.DOTALL)
    told = [int(code) for code in re.findall(r"\b\d+\b", codes)]
    names = ("FAILED", "IMPOSSIBLE", "REFUSED", "INTERRUPTED", "TERMINATED")
    assert told == [0, *(getattr(errors, name) for name in names)]
    operations = (ROOT / "docs/operations.md").read_text().split("## Exit codes")[1].split("##")[0]
    assert set(map(str, told)) <= set(re.findall(r"\b\d+\b", operations))


SECTIONS = (ROOT / "docs/performance.md").read_text().split("\n## ")[1:]


@pytest.mark.parametrize("section", [each for each in SECTIONS if "\n|---" in each])
def test_figures_stand_beside_a_command(section):
    """A section of performance.md with a table names at least one command or file of tests."""
    spans = re.findall(r"`((?:ostraka bench |tests/)[^`]*)`", section)
    assert any(exists(span) for span in spans)
    assert all(is_command(span.split()[1:]) for span in spans if span.startswith("ostraka"))
