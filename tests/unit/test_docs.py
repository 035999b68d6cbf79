"""What the documents say is true: commands exist, help is as shown, and claims have a proof."""

import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ostraka import errors
from ostraka.cli import app
from ostraka.config import Manifest
from ostraka.enclave import __main__ as enclave
from ostraka_lab.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMAND = (ROOT / "docs/command.md").read_text()
HELP_BLOCKS = re.findall(r"\$ ostraka ([a-z ]*)--help\n(.*?)```", COMMAND, re.DOTALL)


def test_nothing_is_to_be_installed_from_where_it_is_not():
    """Ostraka is on no package index. In a clone and from a wheel, other commands work."""
    folders = ("src", "docs", "deploy", "examples", "tests")
    texts = [*DOCUMENTS, *(p for each in folders for p in (ROOT / each).rglob("*.*"))]
    kinds = (".py", ".md", ".toml", ".service")
    kept = {p for p in texts if p.suffix in kinds and p.name != "CHANGELOG.md"}
    told = [p for p in kept if re.search(r"pip install (-\S+ )*['\"]?ostraka\b", p.read_text())]
    assert not told


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_setting_up_shows_that_it_is_alive():
    """make -n -B prints all commands and runs none of them."""
    shown = subprocess.run(
        ["make", "-n", "-B", "test-env"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    installing = [line for line in shown.splitlines() if "pip install" in line]
    assert len(installing) == 2
    assert not any(word in line.split() for line in installing for word in ("-q", "--quiet"))
    assert shown.count("a minute or more") == 2


def test_the_first_federation_says_what_dimension_makes():
    page = (ROOT / "docs/first-federation.md").read_text()
    assert "`--dimension` makes one array called `update`" in " ".join(page.split())
    assert [each.name for each in Manifest.flat(3).tensors] == ["update"]


def test_there_are_help_blocks():
    assert HELP_BLOCKS


@pytest.mark.parametrize(("command", "shown"), HELP_BLOCKS)
def test_help_is_as_a_document_shows_it(command, shown):
    result = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="ostraka")
    assert result.exit_code == 0
    assert words(result.stdout) == words(shown)


def words(text):
    """Terminals differ in width, and break lines behind hyphens."""
    return re.sub(r"-\n\s+", "-", text).split()


def test_every_command_in_the_list_exists():
    commands = re.findall(r"^\$ ostraka (\w+(?: \w+)?)", COMMAND, re.MULTILINE)
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


def test_the_example_of_one_round_runs_as_typed():
    page = (ROOT / "docs/one-round.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
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


def sections(text):
    """The text under each heading, up to the next one, by the heading's anchor; code is left in."""
    blocks = re.split(r"^(```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    marked = "".join(
        each if each.startswith("```") else HEADING.sub("\0\\1\0", each) for each in blocks
    )
    before, *parts = marked.split("\0")
    anchors = list(map(anchor, parts[::2]))
    assert len(set(anchors)) == len(anchors), "no two headings of a document are the same"
    return {"": before, **dict(zip(anchors, parts[1::2], strict=True))}


HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchor(heading):
    return "#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


EVERYWHERE = "Every"  # The heading begins with it in the place of a path.
NOTHING_CLAIMED = {"a definition", "said of a paper", "said of others' software"}
COUNTED = [
    "README.md",
    *(f"docs/{each.name}" for each in sorted(ROOT.glob("docs/*.md")) if each.name != "claims.md"),
    "docs/results/README.md",
]
TEXTS = {name: (ROOT / name).read_text() for name in COUNTED}


def claimed():
    """Every claim of docs/claims.md: its document, its words, and what stands behind it."""
    _, *parts = re.split(r"^## ", (ROOT / "docs/claims.md").read_text(), flags=re.MULTILINE)
    return [
        (part.split()[0], " ".join(words.replace("\\|", "|").split()), behind)
        for part in parts
        for words, behind in table_rows(part)
    ]


CLAIMED = claimed()
CLAIMS = [each for each in CLAIMED if each[2] not in NOTHING_CLAIMED]


def test_there_are_claims():
    assert len(CLAIMS) > 100


@pytest.mark.parametrize(("document", "words", "behind"), CLAIMED)
def test_a_claim_is_in_its_document(document, words, behind):
    if words.startswith("#"):
        assert words in sections(TEXTS[document])
    else:
        assert len(words.split()) > 2  # A claim is a sentence or a part of one, and no bare number.
        texts = TEXTS.values() if document == EVERYWHERE else [TEXTS[document]]
        assert any(words in prose(text) for text in texts)


@pytest.mark.parametrize(("document", "words", "behind"), CLAIMS)
def test_what_stands_behind_a_claim_exists(document, words, behind):
    spans = re.findall(r"`([^`]*)`", behind)
    if words.startswith("#"):  # A section names beside its figures what gives them.
        text = " ".join(sections(TEXTS[document])[words].split())
        assert any(span in text for span in spans)
    assert spans
    for span in spans:
        value = constant(span) if re.fullmatch(CONSTANT, span) else None
        assert exists(span) if value is None else written_in(value, words), span


CONSTANT = r"ostraka(_lab)?(\.\w+)+"
SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def constant(span):
    """The value of a constant of the code."""
    module, _, name = span.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if "ostraka" in str(missing.name):
            raise
        pytest.skip(f"{span} needs {missing.name}")


def written_in(value, words):
    """Whether the words have this value: as a number, in KiB, MiB or per cent, or in letters."""
    forms = [re.escape(f"{value * by:,.15g}") + r"(\.0)?" for by in (1, 2**-10, 2**-20, 100)]
    forms += SMALL[int(value) :][:1] if value in range(len(SMALL)) else []
    return any(re.search(rf"(?<![\w.,]){each}(?!\w|[.,]\d)", words) for each in forms)


@pytest.mark.parametrize(
    ("value", "words", "is_there"),
    [
        (4096, "up to 4,096 receipts", True),
        (4096, "up to 14,096 receipts", False),
        (0.9, "a momentum of 0.9.", True),
        (0.9, "a momentum of 0.95", False),
        (9.0, "ends at 9.0, by the norm", True),
        (2**29, "stops at 512 MiB", True),
        (0.99, "by chance at 99 %", True),
        (8.0, "at most eight times", True),
        (8.0, "at most eighty times", False),
    ],
)
def test_a_value_is_read_as_it_is_written(value, words, is_there):
    assert written_in(value, words) is is_there


def exists(span):
    """Whether there is such a test, file, make target, or command with these options."""
    if span.startswith("test_"):
        return f"def {span}(" in SOURCES
    if span.startswith(("tests/", "python ", "examples/")):
        return (ROOT / span.removeprefix("python ")).is_file()
    if span.startswith("make "):
        return f"\n{span.removeprefix('make ')}:" in (ROOT / "Makefile").read_text()
    return span.startswith("ostraka ") and is_command(span.split()[1:])


def is_command(words):
    command, given = resolved(words)
    known = {option for each in command.params for option in each.opts} if command else set()
    return bool(command) and {word for word in given if word.startswith("--")} <= known


def resolved(words):
    """The command that these words call, None if there is none, and the words that are left."""
    command: click.Command | None = typer.main.get_command(app)
    while isinstance(command, click.Group):
        try:
            _, command, words = command.resolve_command(click.Context(command), words)
        except click.UsageError:
            return None, words
    return command, words


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
        "python tools/offsets.py": True,
        "python tools/onsets.py": False,
        "make soak": True,
        "make gold": False,
        "because we say so": False,
    }.items(),
)
def test_what_does_not_exist_is_seen(span, is_there):
    assert exists(span) is is_there


# A small number in letters counts if it is of something that is measured.
NUMBERS = re.compile(
    r"\d|\b(half|thirds?|quarters?|fifths?|tenths?|dozens?|hundreds?|thousands?|"
    r"twelve|fifteen|sixteen|eighteen|nineteen|twenty|thirty|fifty|twice (as|the|that|what)|"
    r"(two|three|four|five|six|seven|eight|nine|ten) (times|seconds|minutes|hours|bytes|bits))\b"
)
EXEMPT = (
    r"`[^`]*`|\]\([^)]*\)|<img [^>]*>",  # code, the addresses of links, and pictures
    r"\b[A-Za-z][A-Za-z-]*\d[\w.]*|\bHTTP/2\b",  # names: SHA-256, float32, MobileNetV2
    r"\b(19[5-9]|20[0-3])\d\b",  # years: longer numbers have a comma
    r"\b(ADR|RFC|PMLR|eq\.|port|[Ll]aws?|[Ss]ection|[Pp]roposition|[Cc]orollary|[Ff]igures?|[Rr]evision|[Ss]tep)"
    r" \d[\d.]*[a-z]?((,| to| and) \d[\d.]*[a-z]?)*",  # references
    r"\b(Python|Flower|Linux|[Vv]ersion|Status:) \d+(\.\d+)+",  # versions
)


def without_claimed_sections(document):
    """The text without what a claim covers as a whole, headings, code, and numbers of lists.

    Rows of tables that name an existing test have what stands behind them beside them.
    """
    whole = {words for name, words, _ in CLAIMED if name == document}
    text = "\n\n".join(part for at, part in sections(TEXTS[document]).items() if at not in whole)
    text = re.sub(r"^```.*?^```|^ {4}.*?$|^\s*\d+\. ", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not is_proved_row(line))


def is_proved_row(line):
    spans = re.findall(r"`(tests?[_/][^`]*)`", line) if line.startswith("|") else []
    return any(map(exists, spans))


@pytest.mark.parametrize("document", COUNTED)
def test_every_number_is_in_a_claim(document):
    """Whatever is left of a document without its claims and what is exempt has no number."""
    left = prose(without_claimed_sections(document))
    own = [words for name, words, _ in CLAIMED if name in (document, EVERYWHERE)]
    for words in sorted(own, key=len, reverse=True):
        left = re.sub(rf"(?<!\w){re.escape(words)}(?!\w|[.,]\d)", "", left)
    left = re.sub("|".join(EXEMPT), "", left)
    found = [left[max(0, n.start() - 60) : n.end() + 40] for n in NUMBERS.finditer(left)]
    assert not found


COUNTS = {"twenty": 20, "twenty-one": 21}


def test_the_readme_counts_attacks_and_laws():
    attacks, laws = re.findall(r"(\w+) attacks, nearly|the ([\w-]+) laws with", README)
    assert int(attacks[0]) == len(ATTACKS)
    numbers = re.findall(r"^\| (\d+) \|", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE)
    assert sorted(map(int, numbers)) == list(range(1, COUNTS[laws[1]] + 1))


def test_exit_codes_are_as_the_documents_say():
    (codes,) = re.findall(r"Exit codes: (.*?)\.\n", COMMAND, re.DOTALL)
    told = [int(code) for code in re.findall(r"\b\d+\b", codes)]
    names = ("FAILED", "IMPOSSIBLE", "REFUSED", "INTERRUPTED", "TERMINATED")
    assert told == [0, *(getattr(errors, name) for name in names)]
    operations = (ROOT / "docs/operations.md").read_text().split("## Exit codes")[1].split("##")[0]
    assert set(map(str, told)) <= set(re.findall(r"\b\d+\b", operations))


@pytest.mark.parametrize(
    ("command", "section"), [("train", "#one-experiment"), ("compare", "#a-comparison")]
)
def test_the_lab_s_document_has_the_defaults_of_its_commands(command, section):
    """Numbers that options have by themselves are in the last cell of their row."""
    params = resolved([command])[0].params
    defaults = {option: each.default for each in params for option in each.opts}
    rows = [row for row in table_rows(sections(TEXTS["docs/lab.md"])[section]) if "`--" in row[0]]
    assert rows
    for options, _, shown in rows:
        for option in re.findall(r"--[\w-]+", options):
            if type(defaults[option]) in (int, float):
                assert written_in(defaults[option], shown), option
