import pytest

from ostraka.calibration import Costs
from ostraka.errors import ConfigError

COSTS = Costs(gram=0.5, mask=(4.0, 8.0, 20.0))


@pytest.mark.parametrize(("workers", "even"), [(2, 8), (3, 8), (4, 16), (5, 16), (6, 40), (7, 40)])
def test_masks_pay_from_the_break_even_on(workers, even):
    assert COSTS.break_even(workers) == even
    for columns in (1, 10**7):
        assert COSTS.choose(even, columns, workers).distances == "inside"
        assert COSTS.choose(even + 1, columns, workers).distances == "workers"


def test_a_choice_states_both_times():
    choice = COSTS.choose(10, 10**9, 2)
    assert (choice.inside, choice.masked) == pytest.approx((50, 40))
    assert str(choice).startswith("distances by workers: about 50 s")
    assert "40 s to mask" in str(choice)
    assert "inside the enclave" in str(COSTS.choose(3, 10, 2))


@pytest.mark.parametrize("workers", [-1, 0, 1, 8])
def test_the_number_of_workers_is_stated_where_it_cannot_be(workers):
    with pytest.raises(ConfigError, match=f"got {workers}"):
        COSTS.choose(10, 100, workers)


def test_costs_survive_json():
    assert Costs.from_json(COSTS.to_json()) == COSTS
    assert Costs.from_json(Costs().to_json()) == Costs()


BAD = {
    "nothing": "",
    "no JSON": "gram = 1",
    "a list": "[1, 2, 3]",
    "a number": "5",
    "no gram": '{"mask": [1, 2, 3]}',
    "no mask": '{"gram": 1}',
    "two masks": '{"gram": 1, "mask": [1, 2]}',
    "four masks": '{"gram": 1, "mask": [1, 2, 3, 4]}',
    "a word": '{"gram": "much", "mask": [1, 2, 3]}',
    "a null": '{"gram": null, "mask": [1, 2, 3]}',
    "zero": '{"gram": 0, "mask": [1, 2, 3]}',
    "a negative cost": '{"gram": 1, "mask": [1, -2, 3]}',
    "a NaN": '{"gram": NaN, "mask": [1, 2, 3]}',
    "an infinity": '{"gram": 1, "mask": [1, 2, 1e999]}',
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_table_of_costs_is_refused(what):
    with pytest.raises(ConfigError):
        Costs.from_json(BAD[what])
