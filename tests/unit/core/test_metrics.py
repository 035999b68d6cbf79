"""Levels, their mean, and what terms may ask for."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.core.metrics import LEVELS, NAMES, Asked, Reported, ask
from ostraka.errors import ConfigError

ALL = ask(NAMES, loss=8.0, examples=500.0)


def levels(**values):
    return ALL.read(ALL.write(values))


@given(st.floats(0, 1e308), st.floats(0, 1), st.floats(0, 1e308, allow_subnormal=False))
def test_every_value_of_its_range_has_a_level_and_the_level_is_near(loss, accuracy, examples):
    found = levels(loss=loss, accuracy=accuracy, examples=examples)
    wanted = min(loss, 8.0) / 8.0, accuracy, min(examples, 500.0) / 500.0
    for level, value in zip(found, wanted, strict=True):
        assert 0 <= level <= LEVELS
        assert abs(level - LEVELS * value) <= 0.5 + 1e-9


@given(st.binary(min_size=6, max_size=6))
def test_any_bytes_are_levels_or_no_report(report):
    found = ALL.read(report)
    assert found is None or all(0 <= level <= LEVELS for level in found)


def test_no_report_has_the_size_of_a_report():
    assert ALL.read(ALL.write(None)) is None
    assert len(ALL.write(None)) == len(ALL.write({"loss": 1, "accuracy": 1, "examples": 1})) == 6
    nothing = Asked((), ())
    assert nothing.write(None) == nothing.write({"loss": 1.0}) == b""
    assert nothing.read(b"") is None


def test_levels_by_hand():
    assert levels(loss=2.0, accuracy=0.9996, examples=7) == (250, 1000, 14)
    assert levels(loss=9.0, accuracy=0.0, examples=501) == (1000, 0, 1000)
    assert levels(loss=np.float32(0.5), accuracy=np.float64(0.5), examples=np.int64(5)) == (
        62,
        500,
        10,
    )


def test_the_mean_by_hand():
    reports = [(250, 1000, 14), None, (750, 0, 16), (500, 500, 0)]
    assert ALL.mean(reports, 3) == Reported(3, loss=4.0, accuracy=0.5, examples=5.0)
    assert ALL.mean(reports, 4) is None
    assert ALL.mean([None, None], 0) is None
    assert Asked((), ()).mean([None] * 5, 2) is None


def test_what_is_published_has_names_and_figures():
    published = ask(("accuracy",), loss=1.0, examples=1.0).mean([(500,), (700,)], 2)
    assert published is not None
    assert published.means == {"accuracy": 0.6}
    assert published.figures(7) == {"round": 7, "clients": 2, "accuracy": 0.6}
    assert (published.loss, published.examples) == (None, None)


@pytest.mark.parametrize(
    ("names", "limits", "message"),
    [
        (("acuracy",), {}, "one of loss, accuracy, examples; got 'acuracy': did you mean accuracy"),
        (("f1",), {}, "one of loss, accuracy, examples; got 'f1'"),
        (("loss", "loss"), {}, "named once each; got loss, loss"),
        (("loss",), {"loss": 0.0}, "most_loss is above 0"),
        ((), {"loss": math.nan}, "most_loss is above 0"),
        (("loss",), {"examples": math.inf}, "most_examples is above 0, and finite"),
    ],
)
def test_terms_that_cannot_be_kept(names, limits, message):
    with pytest.raises(ConfigError, match=message):
        ask(names, **{"loss": 10.0, "examples": 100.0, **limits})


def test_a_name_is_checked_even_where_the_terms_name_none():
    with pytest.raises(ConfigError, match="got 'lss': did you mean loss"):
        Asked((), ()).write({"lss": 0.1})


def test_an_integer_beyond_floats_is_no_number():
    with pytest.raises(ConfigError, match="examples is a finite number"):
        ALL.write({"loss": 0, "accuracy": 0, "examples": 10**400})


def test_no_limit_that_terms_may_have_gives_an_infinite_mean():
    most = sys.float_info.max
    asked = ask(("loss",), loss=most, examples=1.0)
    assert asked.mean([(1000,), (1000,)], 2) == Reported(2, loss=most)
