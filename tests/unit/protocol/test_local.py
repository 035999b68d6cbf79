"""A federation in one process: its chain, and what happens between rounds."""

from dataclasses import replace

import numpy as np
import pytest

from ostraka.config import Manifest, Terms
from ostraka.errors import LocalProtocolError, TooFewUpdates, UpdateRejected
from ostraka.messages import Certified, Charter
from ostraka.protocol.round import enrol, play

ROWS = (1 + 0.1 * np.random.default_rng(0).normal(size=(6, 40))).astype(np.float32)


def founded():
    return enrol(Terms(Manifest.flat(40), f=1, masking="none"), clients=6)


def test_links_are_those_behind_a_receipt_with_each_charter_before_its_first():
    parties = founded()
    local = parties.federation
    play(parties, ROWS)
    local.revise(replace(local.terms, clip_norm=2.0), local.federation.clients)
    parties.clients[:] = [client.adopt(local.federation) for client in parties.clients]
    play(parties, ROWS)
    play(parties, ROWS)
    kinds = [type(link) for link in local.links(0)]
    assert kinds == [Charter, Certified, Charter, Certified, Certified]
    behind = [link.receipt.number for link in local.links(2) if isinstance(link, Certified)]
    assert behind == [3]
    assert list(local.links(3)) == local.charters


def test_a_round_is_opened_before_it_is_used():
    local = founded().federation
    with pytest.raises(LocalProtocolError, match="no round is open"):
        local.finish()


def test_a_round_that_cannot_stand_is_given_up_by_opening_the_next():
    parties = founded()
    local = parties.federation
    offer = local.open()
    local.take(parties.seal(parties.clients[0], offer, ROWS[0]))
    with pytest.raises(TooFewUpdates):
        local.finish()
    assert play(parties, ROWS).receipt.number == 1


def test_a_round_that_was_given_up_writes_nothing_into_the_memory_of_the_next():
    parties = founded()
    local = parties.federation
    sealed = parties.seal(parties.clients[0], local.open(), ROWS[0])
    given_up = local.intake
    given_up.accept(sealed.header)
    local.open()
    with pytest.raises(UpdateRejected, match="after the round closed"):
        given_up.take(sealed.header.client, sealed.tiles[0])
