import pytest
import torch
from torch import Generator, nn

from ostraka_lab.models.layers import Dropout, StochasticDepth, drawing_from

ONES = torch.ones(1000, 4, 5, 5)


def draw(layer, seed=0):
    with drawing_from(Generator().manual_seed(seed), layer):
        return layer(ONES)


@pytest.mark.parametrize("kind", [Dropout, StochasticDepth])
def test_what_is_kept_makes_up_for_what_is_dropped(kind):
    kept = draw(kind(0.2))
    assert set(kept.unique().tolist()) == {0.0, 1.25}
    assert kept.mean().item() == pytest.approx(1, abs=0.05)


def test_dropout_drops_values_and_stochastic_depth_examples():
    assert torch.all((draw(StochasticDepth(0.2)).flatten(1) > 0).float().std(dim=1) == 0)
    assert torch.all((draw(Dropout(0.2)).flatten(1) > 0).float().std(dim=1) > 0)


@pytest.mark.parametrize("kind", [Dropout, StochasticDepth])
def test_nothing_is_dropped_outside_training_or_at_a_rate_of_zero(kind):
    assert torch.equal(draw(kind(0.2).eval()), ONES)
    assert torch.equal(draw(kind(0.0)), ONES)


def test_draws_follow_the_generator_and_leave_that_of_the_process_alone():
    before = torch.random.get_rng_state()
    layer = Dropout(0.2)
    assert torch.equal(draw(layer, seed=1), draw(layer, seed=1))
    assert not torch.equal(draw(layer, seed=1), draw(layer, seed=2))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_layers_deep_inside_draw_from_it_only_meanwhile():
    inner = Dropout(0.5)
    model, generator = nn.Sequential(nn.Sequential(inner)), Generator()
    with drawing_from(generator, model):
        assert inner.generator is generator
    assert inner.generator is None
