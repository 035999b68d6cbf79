"""`ostraka rules`: what it says is what the rules do."""

import json
import shlex
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.cli.rules import warn_of_copies
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.core import rules
from ostraka.errors import ConfigError


def run(line):
    return CliRunner().invoke(app, shlex.split(line), prog_name="ostraka")


def figures(line):
    return json.loads(run(f"{line} --json").stdout.splitlines()[-1])


def found_with(name, n, f, **changes):
    """A federation with this rule, and what it needs. Raises ConfigError."""
    rule = rules.RULES[name]
    composition = rules.compose(
        name,
        ("nnm",) if name == "krum" else (),
        rules.Options(root="client-0" if rule.needs_root else ""),
    )
    terms = Terms(
        Manifest.flat(200_000),
        f=f,
        masking="none",
        rule=composition.name,
        pre=composition.pre,
        options=composition.options,
        **({"disclose_values": rule.discloses} | changes),
    )
    clients = tuple(Member(f"client-{i}", bytes([i]) * 32) for i in range(n))
    return Federation(terms, clients, (), b"a" * 32, b"i" * 32)


LISTED = {each["name"]: each for each in figures("rules --f 2")["rules"]}


def test_every_rule_and_pre_aggregation_is_listed_once():
    shown = figures("rules")
    assert [each["name"] for each in shown["rules"]] == list(rules.RULES)
    assert [each["name"] for each in shown["pre"]] == list(rules.PRE)
    assert shown["usual"] == "arc+nnm+geometric-median"
    text = run("rules").stdout
    for name in (*rules.RULES, *rules.PRE):
        assert f"\n {name} " in text


OPTIONS = {
    (name, option): usual
    for name, part in (*rules.RULES.items(), *rules.PRE.items())
    for option, usual in part.takes.items()
}


def test_options_are_shown_with_what_holds_unless_they_are_given():
    shown = figures("rules")
    listed = {each["name"]: each["options"] for each in (*shown["rules"], *shown["pre"])}
    assert listed["multi-krum"] == {"k": "n - f", "neighbours": "n - f - 2"}
    assert {(name, option) for name, of in listed.items() for option in of} == set(OPTIONS)
    text = " ".join(run("rules").stdout.split())
    assert "Options: k (n - f), neighbours (n - f - 2)" in text
    assert "Options: iterations (100), smoothing (1e-05 of the longest update)" in text
    assert "Options: root (must be given)" in text


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_what_is_shown_is_what_holds(name, option):
    """An option with its shown value changes nothing, and with another one it does."""
    n, f, rng = 12, 2, np.random.default_rng(8)
    rows = rng.standard_normal((n, 30)) * rng.uniform(0.5, 2, (n, 1))
    rows[0] *= 2
    rows[1] = rows[0] + 1e-3  # Near one, and far from all others.
    last = rows[2] / 2
    gram = rules.Gram(rows @ rows.T, np.zeros(()), 1.0, 3, rows @ last, float(last @ last))
    values = {
        "the median distance from the centre": np.median(np.linalg.norm(rows - last, axis=1)),
        "the median length": np.median(np.linalg.norm(rows, axis=1)),
        "1e-05 of the longest update": 1e-5 * np.linalg.norm(rows, axis=1).max(),
        "last": "last",
        "must be given": "client-3",
    }
    usual = OPTIONS[name, option]
    value = values[usual] if usual in values else eval(usual, {"n": n, "f": f})
    besides: dict[tuple[str, str], dict[str, Any]] = {
        # A radius that is not given is another one in each step.
        ("centred-clipping", "radius"): {"iterations": 1},
        # One is kept, so that another score keeps another.
        ("multi-krum", "neighbours"): {"k": 1},
        ("fltrust", "root"): {"root": "client-3"},
        ("monna", "root"): {"root": "client-3"},
    }
    beside = besides.get((name, option), {})

    def plan(**given):
        pre, rule = ((name,), "geometric-median") if name in rules.PRE else ((), name)
        pre = ("nnm",) if name == "krum" else pre
        composed = rules.compose(rule, pre, rules.Options(**(beside | given)))
        return composed.unlimited(gram, f, np.arange(n))

    assert same(plan(), plan(**{option: value}))
    if option != "root":  # The enclave looks for its row.
        unlike: dict[str, list[Any]] = {"centre": ["medoid"], "beta": [0.3], "smoothing": [30.0]}
        others = unlike.get(option, [1, 2, 3])
        assert not all(same(plan(), plan(**{option: other})) for other in others)


def same(one, other):
    if isinstance(one, rules.Columnwise):
        return (one.reducer, one.count) == (other.reducer, other.count)
    return bool(np.allclose(one.values, other.values, atol=1e-12)) and one.last == other.last


@pytest.mark.parametrize("name", rules.RULES)
def test_a_rule_stands_on_the_number_that_is_shown_and_on_none_below(name):
    least = LISTED[name]["least_n"]
    assert found_with(name, least, f=2).terms.rule == name
    with pytest.raises(ConfigError, match=f"needs at least {least} clients"):
        found_with(name, least - 1, f=2)


@pytest.mark.parametrize("name", [*rules.RULES, *rules.PRE])
def test_the_formula_is_that_of_any_f(name):
    for f in (1, 2, 5, 9):
        each = next(
            each
            for part in ("rules", "pre")
            for each in figures(f"rules --f {f}")[part]
            if each["name"] == name
        )
        slope, _, rest = each["least"].rpartition("f + ")
        assert each["least_n"] == int(slope or 1) * f + int(rest)


@pytest.mark.parametrize("name", rules.RULES)
def test_what_is_said_of_sketches_is_what_terms_refuse(name):
    least = LISTED[name]["least_sketch"]
    if least is None:
        assert any("no sketch" in need for need in LISTED[name]["needs"])
        with pytest.raises(ConfigError, match="sketch"):
            found_with(name, 30, f=2, sketch=65_536)
    else:
        found_with(name, 30, f=2, sketch=max(least, 4096))
        if least:
            with pytest.raises(ConfigError, match=f"at least {least} columns"):
                found_with(name, 30, f=2, sketch=least - 1)


def test_needs_are_those_without_which_terms_are_refused():
    needs = {name: "; ".join(each["needs"]) for name, each in LISTED.items()}
    for name, rule in rules.RULES.items():
        assert ("a root client" in needs[name]) == rule.needs_root
        assert ("nnm before" in needs[name]) == (name in ("krum", "median"))
    assert needs["median"] == "disclose_values, or nnm before it"
    with pytest.raises(ConfigError, match="disclose_values = true"):
        found_with("median", 30, f=2, disclose_values=False)


def test_options_names_of_others_and_citations_are_those_of_the_classes():
    shown = figures("rules")
    for each in (*shown["rules"], *shown["pre"]):
        part = (rules.RULES | rules.PRE)[each["name"]]
        assert each["options"] == part.takes
        assert each["citation"] == part.citation
        assert each["citation"], f"{each['name']} says nowhere who proposed it"
        assert "\n" not in each["citation"]
        assert each["what"].endswith(".")
        for alias in each["aliases"]:
            assert rules.ALIASES[alias] == each["name"]
    listed = {
        alias for part in ("rules", "pre") for each in shown[part] for alias in each["aliases"]
    }
    assert listed == set(rules.ALIASES), "an alias of a rule that there is not"


def test_with_n_and_f_it_says_what_stands():
    shown = {each["name"]: each["stands"] for each in figures("rules --n 12 --f 3")["rules"]}
    assert shown["trimmed-mean"], "11 are enough"
    assert not shown["bulyan"], "17 are needed"
    text = run("rules --n 12 --f 3").stdout
    assert " bulyan " in text
    assert "too few" in text
    most = {each["name"]: each["most_f"] for each in figures("rules --n 12")["rules"]}
    assert (most["geometric-median"], most["multi-krum"], most["trimmed-mean"]) == (5, 4, 3)
    assert figures("rules --n 1")["rules"][0]["most_f"] is None


def test_with_n_and_f_it_says_what_f_clients_can_do():
    shown = figures("rules --n 11 --f 4")
    verdicts = {each["name"]: each["verdict"] for each in (*shown["rules"], *shown["pre"])}
    expected = {
        "mean": "not robust",
        "multi-krum": "turns",
        "geometric-median": "stands",
        "bulyan": "too few",
        "clip": "stands",
    }
    assert {name: verdicts[name] for name in expected} == expected
    assert shown["usual_verdict"] == "stands"
    text = " ".join(run("rules --n 11 --f 4").stdout.split())
    assert " mean 6 not robust The plain mean" in text
    assert " multi-krum 11 turns Averages" in text
    assert "f equal updates can turn the aggregate around, if nothing comes before the rule" in text
    assert "Usual: arc+nnm+geometric-median (stands). The paper's: multi-krum (turns)." in text


@pytest.mark.parametrize(("n", "f"), [(1, 0), (4, 1), (12, 3), (33, 15)])
def test_a_rule_turns_where_its_terms_are_warned_of(n, f, capsys):
    for each in figures(f"rules --n {n} --f {f}")["rules"]:
        name = each["name"]
        if not each["needs"] and each["stands"]:
            warn_of_copies(rules.compose(name, ()), n, f)
            assert (each["verdict"] == "turns") == bool(capsys.readouterr().err), name
        assert each["stands"] == (each["verdict"] != "too few")


def test_numbers_alone_give_no_verdict():
    assert figures("rules --n 11")["usual_verdict"] is None
    assert figures("rules --f 4")["rules"][0]["verdict"] is None
    assert "Turns:" not in run("rules --n 11").stdout


def test_numbers_below_zero_are_refused():
    result = run("rules --n -1")
    assert result.exit_code == 2
    assert "n counts clients and cannot be negative; got -1" in result.stderr


WARNED = {
    "multi-krum near 2f + 3": (
        ("multi-krum", 33, 15),
        "n = 33 and f = 15, f equal updates can turn the aggregate of multi-krum around",
        "take at least 46 clients, or f = 10, or another rule, such as arc+nnm+geometric-median",
    ),
    "few of many are averaged": (
        ("multi-krum(k=11)", 40, 9),
        "the aggregate of multi-krum(k=11) around",
        "take at least 56 clients, or f = 8, or k = 31, or another rule",
    ),
    "a geometric median alone": (("geometric-median", 23, 10), "geometric-median", "f = 7, or"),
}


@pytest.mark.parametrize(("terms", "what", "ways"), WARNED.values(), ids=list(WARNED))
def test_copies_that_turn_the_aggregate_around_are_warned_of(terms, what, ways, capsys):
    text, n, f = terms
    warn_of_copies(rules.parse(text), n, f)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("warning: ")
    assert what in told.err
    assert ways in told.err


QUIET = {
    "as many clients as the warning says": ("multi-krum", 46, 15),
    "as many clients for few rows": ("multi-krum(k=11)", 56, 9),
    "as few attackers as the warning says": ("multi-krum", 33, 10),
    "as many rows as the warning says": ("multi-krum(k=31)", 40, 9),
    "the rule that the warning names": ("arc+nnm+geometric-median", 33, 15),
    "the paper's rule as it is usual": ("multi-krum", 64, 12),
    "a rule that is not robust at all": ("mean", 33, 15),
    "nobody who colludes": ("multi-krum", 33, 0),
}


@pytest.mark.parametrize(("text", "n", "f"), QUIET.values(), ids=list(QUIET))
def test_other_terms_are_not_warned_of(text, n, f, capsys):
    warn_of_copies(rules.parse(text), n, f)
    assert capsys.readouterr().err == ""
