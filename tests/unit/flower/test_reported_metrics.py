"""Metrics that travel sealed with the update: the operator gets their mean, and nothing else."""

import pytest

pytest.importorskip("flwr")

from flwr.common.serde import recorddict_to_proto

from ostraka.errors import ConfigError
from ostraka.flower import UNSAFE_SIMULATION, sealing_mod
from ostraka.flower.options import NodeOptions

TERMS = {"report_metrics": ("loss", "examples")}


def reporting(text):
    return lambda node: [sealing_mod(UNSAFE_SIMULATION, report_metrics=text)]


def test_the_strategy_gets_the_mean_of_what_nodes_seal(flower):
    """Apps say 0.25 + node, of which 10 and more count as 10, and 10^12 examples."""
    federation = flower(mods=reporting("loss examples"), terms=TERMS)
    (metrics,) = federation.start(1).train_metrics_clientapp.values()
    assert metrics["reporting"] == 7
    assert metrics["loss"] == pytest.approx(0.25 + 3, abs=0.005)
    assert metrics["examples"] == 10_000
    assert federation.receipts[0].metrics.clients == 7


def test_nothing_of_them_is_in_the_clear_and_all_replies_have_one_size(flower):
    federation = flower(
        mods=lambda node: reporting("loss examples" if node % 2 else "")(node), terms=TERMS
    )
    federation.start(1)
    sealed = [reply for _, _, reply in federation.grid.log if federation.is_sealed(reply)]
    assert len(sealed) == 7
    assert not any(reply.content.metric_records for reply in sealed)
    assert len({len(recorddict_to_proto(each.content).SerializeToString()) for each in sealed}) == 1
    assert federation.receipts[0].metrics.clients == 3


@pytest.mark.parametrize(
    ("text", "warns"),
    [("", False), ("loss", True), ("loss=no-such examples", True), ("examples loss=loss", None)],
)
def test_what_does_not_fit_keeps_no_update_back(flower, caplog, text, warns):
    caplog.set_level("WARNING", logger="ostraka.flower")
    federation = flower(mods=reporting(text), terms=TERMS)
    federation.start(1)
    (receipt,) = federation.receipts
    assert receipt.participants == 7
    assert (receipt.metrics is not None) == (warns is None)
    assert ("reports no metrics" in caplog.text) == bool(warns)


def test_where_the_terms_name_none_nothing_is_published(flower):
    federation = flower(mods=reporting("loss examples"))
    (metrics,) = federation.start(1).train_metrics_clientapp.values()
    assert set(metrics) == {"participants", "kept", "rejected"}


def test_names_and_keys():
    assert NodeOptions(report_metrics="loss=train_loss accuracy examples").reported() == {
        "loss": "train_loss",
        "accuracy": "accuracy",
        "examples": "num-examples",
    }
    with pytest.raises(ConfigError, match="got 'acc': did you mean accuracy"):
        NodeOptions(report_metrics="acc").reported()
