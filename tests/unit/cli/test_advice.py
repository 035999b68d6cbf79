"""`ostraka init --advise`: what it asks and writes; and that tables, page and advice agree."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ostraka import federation_file
from ostraka.cli import app
from ostraka.cli.advice import ROWS, Situation, advise
from ostraka.core import rules
from ostraka.errors import ConfigError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/choosing-a-rule.md").read_text()
TABLES = [json.loads(each.read_text()) for each in ROOT.glob("docs/results/mnist-rules*.json")]
ANSWERS = "--clients 9 --f 2 --data alike --root none --workers 2"
N = 25


def run(line, answers=""):
    words = ["init", "fed", *shlex.split(line), "--dimension", "9"]
    return CliRunner().invoke(app, words, input=answers, prog_name="ostraka")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def situation(*, clients=N, f=5, data="different", root=""):
    return Situation(clients, f, data, root, workers=2)


def terms():
    return tomllib.loads(Path("fed/federation.toml").read_text())["terms"]


def test_it_asks_five_questions_and_writes_the_terms_with_the_reason():
    result = run("--advise", "9\n2\ndifferent\n3\n3\n")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("]: ") == 5
    advice = advise(Situation(9, 2, "different", "client-3", 3))
    federation = federation_file.load(Path("fed/federation.toml")).federation()
    assert federation.terms.composition == advice.composition
    assert str(advice.composition) == "fltrust(root=client-3)"
    assert (federation.terms.f, len(federation.clients), len(federation.workers)) == (2, 9, 3)
    written = re.sub(r"\n# +", " ", Path("fed/federation.toml").read_text())
    for reason in advice.reasons:
        assert reason in written
        assert reason in " ".join(result.stdout.split())


def test_an_empty_answer_is_the_usual_one():
    assert run("--advise", "\n" * 5).exit_code == 0
    federation = federation_file.load(Path("fed/federation.toml")).federation()
    assert (len(federation.clients), federation.terms.f, len(federation.workers)) == (12, 3, 2)
    advice = advise(Situation(12, 3, "different", "", 2))
    assert federation.terms.composition == advice.composition


def test_answers_on_the_command_line_are_not_asked_for():
    result = run(f"--advise {ANSWERS} --json")
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["rule"] == str(advise(Situation(9, 2, "alike", "", 2)).composition)
    assert figures["masking"] == "exact"
    assert len(figures["reasons"]) == 2
    assert "How many" not in result.stderr


def test_without_workers_nothing_is_masked():
    assert run(f"--advise {ANSWERS.replace('--workers 2', '--workers 0')}").exit_code == 0
    assert terms()["masking"] == "none"


NONSENSE = {
    "more attackers than any rule bears": ("--clients 9 --f 4", "enrol 10 or more"),
    "a negative f": ("--f -1", "0 or more of them are Byzantine"),
    "no clients": ("--clients 0 --f 0", "there are clients"),
    "one worker": ("--workers 1", "masks take 2 workers or more"),
    "fewer workers than none": ("--workers -2", "masks take 2 workers or more"),
    "a root that is no client": ("--root hospital-a --data different", "hospital-a"),
    "data of a third kind": ("--data odd", "'odd' is not one of 'alike', 'different'"),
    "a rule": ("--rule arc+caf", "leave out --rule"),
    "a masking and values": ("--masking none --disclose-values", "--disclose-values, --masking"),
}


@pytest.mark.parametrize("case", NONSENSE.values(), ids=list(NONSENSE))
def test_nonsense_is_refused_and_nothing_is_made(case):
    more, said = case
    given = {**dict(zip(*[iter(ANSWERS.split())] * 2, strict=True))}
    words = shlex.split(more)
    for option in [each for each in words if each in given]:
        given[option] = words[words.index(option) + 1]
        del words[words.index(option) : words.index(option) + 2]
    result = run(" ".join(["--advise", *(w for pair in given.items() for w in pair), *words]))
    assert result.exit_code != 0
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert not Path("fed").exists()


def test_an_answer_that_does_not_come_is_an_error():
    result = run("--advise", "9\ntwo\n")
    assert result.exit_code != 0
    assert "--advise needs five answers" in result.stderr
    assert "--clients, --f, --data, --root, --workers" in " ".join(result.stderr.split())
    assert not Path("fed").exists()


def test_how_data_compare_matters_to_advice_alone():
    result = run("--data alike")
    assert "--data is a question of --advise" in result.stderr
    assert not Path("fed").exists()


@pytest.mark.parametrize("data", ["alike", "different"])
@pytest.mark.parametrize("root", ["", "client-1"])
def test_what_is_advised_stands_on_every_number_of_clients(data, root):
    for f in range(12):
        for clients in range(2 * f + 2, 4 * f + 9):
            given = Situation(clients, f, data, root, 2)
            composition = advise(given).composition
            rules.require_enough(composition, clients, f)
            assert bool(composition.options.root) <= bool(root)


def test_too_few_clients_have_no_situation():
    with pytest.raises(ConfigError, match="enrol 12 or more"):
        situation(clients=11)


# The tables, the page and the advice.


# Of every rule in every scenario: the mean of its seeds, and their range.
WORST = {
    (each["partition"], each["byzantine"], each["defence"]): each
    for table in TABLES
    for each in table["spreads"]
    if each["worst_case"]
}
SCENARIOS = sorted({(partition, f) for partition, f, _ in WORST})
KINDS = {"iid": "alike", "dirichlet:0.3": "different"}


def needs_root(rule):
    return rule != "plain" and rules.RULES[rule.split("+")[-1]].needs_root


def test_the_tables_are_as_large_as_is_said():
    assert SCENARIOS == [("dirichlet:0.3", 5), ("dirichlet:0.3", 9), ("iid", 5), ("iid", 9)]
    assert {each["seeds"] for each in WORST.values()} == {3}
    for table in TABLES:
        assert len(table["leaders"]) == 12
        attacks = {each["attack"] for each in table["spreads"]} - {"none"}
        assert len(attacks) == 10
        assert table["checks"]
        assert all(each["difference"] <= 1e-5 for each in table["checks"])


@pytest.mark.parametrize("root", ["", "client-1"])
@pytest.mark.parametrize(("partition", "f"), SCENARIOS)
def test_no_rule_of_the_tables_is_better_than_what_is_advised(partition, f, root):
    """In its worst case, and by more than seeds differ."""
    admissible = {
        rule: each
        for (*where, rule), each in WORST.items()
        if tuple(where) == (partition, f) and (root or not needs_root(rule))
    }
    advised = advise(situation(f=f, data=KINDS[partition], root=root)).composition.plain
    best = max(admissible.values(), key=lambda each: each["mean"])
    assert admissible[advised]["most"] >= best["least"], best["defence"]


def cells(heading):
    """The headings and the rows of the table under this heading of the page."""
    section = re.split(r"^#+ ", PAGE, flags=re.MULTILINE)
    (text,) = (each for each in section if each.startswith(f"{heading}\n"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    return table[0], table[2:]


def test_the_page_has_the_rows_by_which_advice_is_given():
    assert cells("In short")[1] == [[row.when, f"`{row.rule}`", row.why] for row in ROWS]


def test_the_page_has_the_worst_cases_of_the_tables():
    (_, *columns), rows = cells("Worst cases")
    shown = {
        (row[0].strip("`"), column): cell
        for row in rows
        for column, cell in zip(columns, row[1:], strict=True)
    }
    assert shown == {
        (rule, f"{KINDS[partition]}, {f} of {N}"): "{:.1f} % ({:.1f} to {:.1f})".format(
            *(100 * each[name] for name in ("mean", "least", "most"))
        )
        for (partition, f, rule), each in WORST.items()
    }


@pytest.mark.parametrize("root", ["none", "client-1"])
@pytest.mark.parametrize(("partition", "f"), SCENARIOS)
def test_the_command_writes_what_the_page_advises(partition, f, root):
    line = f"--clients {N} --f {f} --data {KINDS[partition]} --root {root} --workers 2"
    assert run(f"--advise {line} --no-simulation").exit_code == 0
    composition = federation_file.load(Path("fed/federation.toml")).federation().terms.composition
    given = situation(f=f, data=KINDS[partition], root=root.replace("none", ""))
    holding = next(row for row in ROWS if row.holds(given))
    assert f"`{composition.plain}`" == next(
        rule for when, rule, _ in cells("In short")[1] if when == holding.when
    )
