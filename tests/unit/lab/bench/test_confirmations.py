"""Confirming is measured by the real roles, on an enclave with a state on disk."""

import pytest

from ostraka.crypto.identity import Identity
from ostraka.encoding import decode
from ostraka.errors import ConfigError, ReceiptRefused
from ostraka.messages import Certified
from ostraka.protocol.client import Client
from ostraka.protocol.round import enrol
from ostraka_lab.bench import confirmations
from ostraka_lab.bench.confirmations import STEPS, Plan, measure
from ostraka_lab.bench.parties import SKETCH_INSIDE, terms_of
from ostraka_lab.bench.whole_round import repeated


def quietly(*_):
    pass


def test_every_step_takes_time_and_says_what_it_sends():
    figures = measure(Plan(clients=7, receipts=3, repeat=2), quietly)
    assert figures["quorum"] == 5
    steps = figures["steps"]
    assert list(steps) == list(STEPS)
    assert all(step["cpu_s"] > 0 and step["wall_s"] > 0 for step in steps.values())
    sends = {name for name, step in steps.items() if step["bytes"]}
    assert sends == {"propose", "vote", "certify", "newcomer"}
    assert steps["certify"]["bytes"] > 7 * 64
    assert 3 * 5 * 64 < steps["newcomer"]["bytes"] < 3 * steps["certify"]["bytes"]


def test_the_newcomers_chain_has_exactly_the_votes_that_it_needs():
    parties = enrol(terms_of(SKETCH_INSIDE, 7, 16_384), clients=7)
    rows = list(repeated(7, 16_384))
    offer = parties.federation.open()
    submitted = [
        parties.join(client, offer, row) for client, row in zip(parties.clients, rows, strict=True)
    ]
    for each in submitted:
        parties.federation.take(each.sealed)
    ballot = parties.federation.finish()
    for each in submitted:
        parties.federation.confirm(each.vote(ballot.proposal).joined.client.confirmation())
    parties.federation.release()
    enclave = Identity.generate()
    links = [decode(Certified, link) for link in confirmations._chain(parties, 3, enclave)]
    client = Client("newcomer", enclave, parties.federation.federation, enclave.public)
    for link in links:
        client = client.follow(link)
    assert client.last is not None
    assert client.last.number == 3
    certificates = [link.certificate for link in links if link.certificate is not None]
    assert [len(each.votes) for each in certificates] == [5, 5, 5]
    parties.clients[4:] = []
    (short,) = confirmations._chain(parties, 1, enclave)
    newcomer = Client("newcomer", enclave, parties.federation.federation, enclave.public)
    with pytest.raises(ReceiptRefused, match="4 confirmations and needs 5"):
        newcomer.follow(decode(Certified, short))


@pytest.mark.parametrize("options", [{"receipts": 0}, {"repeat": 0}])
def test_nothing_to_measure_is_refused(options):
    with pytest.raises(ConfigError, match="at least 1"):
        Plan(**options)
