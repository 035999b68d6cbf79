"""Numbers as people read them. No line ends between a number and its unit."""

import pytest

from ostraka_lab.report import format

SHOWN = [
    (format.seconds(0.0123), "12.3 ms"),
    (format.seconds(2.5), "2.5 s"),
    (format.seconds(0.5), "0.5 s"),
    (format.seconds(119.4), "119 s"),
    (format.seconds(7199), "119 min 59 s"),
    (format.seconds(7200), "2 h"),
    (format.seconds(None), "-"),
    (format.times(2.5), "2.5 ×"),
    (format.times(None), "-"),
    (format.times(float("inf")), "-"),
    (format.percent(0.256), "26 %"),
    (format.percent(0.2564, decimals=1), "25.6 %"),
    (format.percent(None), "-"),
    (format.size(1536), "1.5 KiB"),
    (format.size(5 * 2**50), "5,120 TiB"),
    (format.size(1700, "MiB"), "1.66 GiB"),
    (format.size(None), "-"),
    (format.yes(None), "-"),
    (format.yes(False), "no"),
    (format.count(1, "round"), "1 round"),
    (format.count(2000, "round"), "2,000 rounds"),
    (format.listed(["a"]), "a"),
    (format.listed(["a", "b", "c"]), "a, b and c"),
]


@pytest.mark.parametrize(("shown", "expected"), SHOWN)
def test_numbers_are_written_for_people(shown, expected):
    assert shown.replace(format.SPACE, " ") == expected


def test_a_number_and_its_unit_stay_on_one_line():
    for shown in (format.seconds(2.5), format.percent(0.5), format.size(2), format.times(3)):
        assert " " not in shown
