import pytest

from ostraka_lab.models import build
from ostraka_lab.models.layers import Dropout, StochasticDepth
from ostraka_lab.models.networks import B0, B1, Bottleneck, Size


@pytest.mark.parametrize(
    ("width", "channels", "expected"),
    [
        (1.0, 32, 32),
        (1.1, 32, 32),  # 35.2: a multiple of 8
        (1.1, 16, 16),  # 17.6
        (1.2, 40, 48),  # 48
        (1.4, 24, 32),  # 33.6
        (1.0, 11, 16),  # 8 would be less than nine tenths
        (0.1, 16, 8),  # never less than 8
    ],
)
def test_channels_are_rounded_to_multiples_of_eight(width, channels, expected):
    assert Size(width, depth=1, dropout=0).channels(channels) == expected


def test_depth_is_rounded_up():
    assert [B1.blocks(count) for count in (1, 2, 3, 4)] == [2, 3, 4, 5]
    assert [B0.blocks(count) for count in (1, 2, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize(("name", "blocks"), [("efficientnet-b0", 16), ("efficientnet-b1", 23)])
def test_later_branches_are_dropped_more_often(name, blocks):
    model = build(name, shape=(3, 32, 32), classes=10, seed=0)
    assert sum(isinstance(layer, Bottleneck) for layer in model.modules()) == blocks
    rates = [layer.rate for layer in model.modules() if isinstance(layer, StochasticDepth)]
    assert rates == sorted(rates)
    assert len(set(rates)) == len(rates)
    assert rates[-1] < 0.2
    assert [layer.rate for layer in model.modules() if isinstance(layer, Dropout)] == [0.2]
