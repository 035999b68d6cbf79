"""Attacks that try out the very rule: what they foresee happens, and no scale does more harm."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostraka.core import rules
from ostraka_lab.attacks import ATTACKS, informed, optimal
from ostraka_lab.attacks.optimal import Line, best
from ostraka_lab.baselines import PLAIN
from ostraka_lab.defence import Defence, Past, Plain

F = 4
ROOT = "(root=client-3)"
RULES = (
    "multi-krum",
    "arc+nnm+geometric-median",
    "arc+caf",
    "clip+mean",
    f"fltrust{ROOT}",
    "centred-clipping(radius=0.5)",
    "trimmed-mean",
    "nnm+median",
)
every_rule = pytest.mark.parametrize("rule", RULES)
PUBLISHED = Path(__file__).parents[4] / "docs/results"


def published_rules():
    """The rules of the tables that compare rules."""
    tables = [json.loads(each.read_text()) for each in PUBLISHED.glob("*-rules.json")]
    assert tables
    found = {each["defence"] for table in tables for each in table["leaders"]}
    return sorted(f"{each}{ROOT * (each in ('fltrust', 'monna'))}" for each in found)


both = pytest.mark.parametrize("attack", [optimal.ipm, optimal.alie], ids=["ipm", "alie"])


def setting(updates, scene, rule, *, seed=0, noise=2.0):
    """Honest updates, and the scene of attackers who know all of them."""
    honest = updates(16, 80, seed=seed, noise=noise)
    root = 2 if "root" in rule else None
    last = honest[:5].mean(axis=0, dtype=np.float64) if "centred" in rule else None
    if rule == PLAIN:
        return honest, replace(scene(honest, byzantine=F), defence=Plain())
    return honest, scene(honest, byzantine=F, rule=rule, root=root, last=last)


def sent_to(attack, honest, scale):
    """What goes out at this scale, by the formulae of the attacks."""
    centre = honest.mean(axis=0, dtype=np.float64)
    off = -centre if attack is optimal.ipm else -honest.std(axis=0, dtype=np.float64)
    start = 0 if attack is optimal.ipm else centre
    return (start + scale * off).astype(np.float32)


def harm(given, honest, sent):
    """How far the aggregate is from the honest mean, from rows as the defence gets them."""
    rows = np.vstack([honest, *[sent] * F])
    aggregate = given.defence(rows, Past(1, given.last)).mean
    return np.linalg.norm(aggregate - honest.mean(axis=0, dtype=np.float64))


def line(attack, given):
    return Line.through(
        given, optimal._back(given) if attack is optimal.ipm else optimal._off(given)
    )


@every_rule
@both
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 60.0])
def test_what_they_foresee_is_what_happens(scene, updates, rule, attack, scale):
    """In Gram coordinates as on rows: clipping, the root client and the last aggregate included."""
    honest, given = setting(updates, scene, rule)
    foreseen = np.sqrt(line(attack, given).harm(scale))
    happened = harm(given, honest, sent_to(attack, honest, scale))
    assert foreseen == pytest.approx(happened, rel=1e-4)


@every_rule
@both
def test_no_scale_of_a_fine_grid_does_more_harm(scene, updates, rule, attack):
    _, given = setting(updates, scene, rule)
    tried = line(attack, given)
    reached = tried.harm(best(tried))
    grid = tried.longest() * np.geomspace(1 / 512, 1, 150)
    # Harm has jumps, where a rule begins to drop what it kept; the search comes close to them.
    assert reached >= 0.95 * max(tried.harm(scale) for scale in grid)


@every_rule
@both
def test_it_sends_the_best_scale_and_a_part_of_it_if_asked(scene, updates, rule, attack):
    honest, given = setting(updates, scene, rule)
    scale = best(line(attack, given))
    assert scale > 0
    np.testing.assert_allclose(attack(given), sent_to(attack, honest, scale), atol=1e-6)
    half = scene(honest, byzantine=F, rule=rule, root=given.root, last=given.last, scale=0.5)
    np.testing.assert_allclose(attack(half), sent_to(attack, honest, 0.5 * scale), atol=1e-6)


@pytest.mark.parametrize("rule", ["multi-krum", "arc+nnm+geometric-median", "trimmed-mean"])
def test_it_does_more_harm_than_the_fixed_scale(scene, updates, rule):
    for seed in range(5):
        honest, given = setting(updates, scene, rule, seed=seed)
        fixed = harm(given, honest, informed.ipm(given))
        assert harm(given, honest, optimal.ipm(given)) > fixed


FIXED = {
    "optimal-ipm": ("ipm",),
    "optimal-alie": ("alie", "min-max-sd", "min-sum-sd"),
    "optimal-unit": ("min-max", "min-sum"),
    "optimal-sign": ("min-max-sign", "min-sum-sign"),
    "optimal-rop": ("rop",),
    "optimal-sparse-hybrid": ("sparse-hybrid",),
    "optimal-skew": ("skew",),
}


def sent_by(name, given):
    send = ATTACKS[name].send
    assert send is not None
    return send(given)


def test_every_attack_that_knows_the_rule_has_a_fixed_form():
    assert {name for name in ATTACKS if name.startswith("optimal-")} == set(FIXED)


@pytest.mark.parametrize("rule", sorted({*RULES, *published_rules()}))
@pytest.mark.parametrize("name", FIXED)
def test_it_is_at_least_as_strong_as_its_fixed_form(scene, updates, rule, name):
    for seed in range(2):
        honest, given = setting(updates, scene, rule, seed=seed)
        reached = harm(given, honest, sent_by(name, given))
        for fixed in FIXED[name]:
            scale = ATTACKS[fixed].default_scale(given.clients, F)
            weaker = harm(given, honest, sent_by(fixed, replace(given, scale=scale)))
            assert reached >= weaker * (1 - 1e-5), fixed


def test_against_another_rule_it_is_another_attack(scene, updates):
    scales = {
        rule: best(line(optimal.ipm, setting(updates, scene, rule)[1]))
        for rule in ("multi-krum", "arc+nnm+geometric-median", "clip+mean")
    }
    assert len({round(scale, 3) for scale in scales.values()}) == 3


def test_plain_averaging_is_given_all_that_there_is(scene, updates):
    """Nothing holds plain averaging back: the longest step of the search is the best."""
    known = updates(16, 80)
    given = scene(known, byzantine=F)
    given = type(given)(**vars(given) | {"defence": Plain()})
    tried = line(optimal.ipm, given)
    assert best(tried) == pytest.approx(tried.longest(), rel=1e-6)
    beyond = 2 * tried.longest()
    assert best(replace(tried, usual=(beyond,))) == beyond


@both
def test_a_rule_that_fails_moves_nothing_and_the_search_goes_on(
    scene, updates, attack, monkeypatch
):
    """A null step is as far from the honest mean as zero is."""
    honest, given = setting(updates, scene, "multi-krum")
    tried = line(attack, given)
    needs_more = Defence(rules.parse("multi-krum"), 9)
    monkeypatch.setitem(tried.__dict__, "defence", needs_more)
    assert np.sqrt(tried.harm(1.0)) == pytest.approx(np.linalg.norm(honest.mean(axis=0)), rel=1e-5)
    assert np.isfinite(best(tried))


@both
@settings(max_examples=30, deadline=None)
@given(m=st.integers(2, 12), byzantine=st.integers(1, 6), clients=st.integers(14, 30))
def test_those_who_know_few_imagine_a_smaller_federation(
    *, scene, updates, attack, m, byzantine, clients
):
    known = updates(m, 30, seed=m)
    given = scene(known, byzantine=byzantine, clients=clients, rule="multi-krum")
    sent = attack(given)
    assert np.isfinite(sent).all()
    imagined, copies = optimal._imagined(given)
    honest = clients - byzantine
    if m < honest:
        assert copies == max(byzantine * m // honest, 1)
        assert imagined.f <= byzantine * m // honest
    assert imagined.f == 0 or imagined.composition.least(imagined.f) <= m + copies


@both
@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, np.inf])
def test_a_model_that_stands_still_or_has_run_away_is_no_error(scene, attack, value):
    known = np.full((6, 5), value, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert attack(scene(known)).shape == (5,)


def test_bucketing_is_tried_out_on_an_order_of_their_own(scene, updates):
    """Nobody foresees the enclave's: attackers of one round agree on one, and on another later."""
    known = updates(16, 80)
    orders = [
        line(optimal.ipm, scene(known, byzantine=F, number=number, seed=seed)).order
        for number, seed in ((1, 1), (1, 2), (2, 1))
    ]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])


def test_the_golden_section_finds_a_peak():
    at, value = optimal._golden(lambda x: -((x - 0.3) ** 2), -1.0, 1.0)
    assert at == pytest.approx(0.3, abs=0.03)
    assert value <= 0


def test_45_scales_are_tried_out_beside_those_of_fixed_forms(scene, updates, monkeypatch):
    _, given = setting(updates, scene, "multi-krum")
    tried, harm_of = [], Line.harm

    def counted(self, scale):
        tried.append(scale)
        return harm_of(self, scale)

    monkeypatch.setattr(Line, "harm", counted)
    best(replace(line(optimal.ipm, given), usual=()))
    assert len(set(tried)) == 45
