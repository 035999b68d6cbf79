"""Who may take part: the enrolled, once a round, until they are revoked."""

from dataclasses import replace

import numpy as np
import pytest

from ostraka.config import Federation, Member
from ostraka.core.optimiser import Optimiser
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED
from ostraka.errors import (
    ConfigError,
    LocalProtocolError,
    NotEnrolled,
    OpenError,
    ReceiptRefused,
    Rejection,
    UpdateRejected,
)
from ostraka.messages import Charter
from ostraka.protocol.enclave import Offload


def sign(simulation, federation: Federation, by: Identity | None = None) -> Charter:
    return (by or simulation.authority).sign(Charter(federation, UNSIGNED))


def revoke(simulation, row: int) -> Charter:
    """The next revision, without this client."""
    old = simulation.federation
    return sign(
        simulation,
        replace(
            old,
            revision=old.revision + 1,
            clients=tuple(each for each in old.clients if each != old.clients[row]),
            revoked=(old.clients[row],),
        ),
    )


def adopt(simulation, charter: Charter) -> None:
    """The enclave and all clients go on under a new revision."""
    simulation.enclave.adopt(charter)
    simulation.federation = charter.federation
    simulation.clients = [client.adopt(charter.federation) for client in simulation.clients]


def test_a_sybil_is_refused_by_name_and_the_round_is_unaffected(simulate, masking):
    round_ = simulate(n=7, masking=masking).open()
    sybil = replace(round_.seal(0).header, client="sybil")
    with pytest.raises(NotEnrolled) as caught:
        round_.accept(round_.simulation.stranger.sign(sybil))
    assert caught.value.name == "sybil"
    round_.send_all()
    round_.assert_result(round_.finish(), {})


def test_a_client_that_sends_twice_is_refused_the_second_time(simulate, masking):
    round_ = simulate(n=7, masking=masking).open()
    round_.send_all()
    with pytest.raises(UpdateRejected, match="sent twice"):
        round_.accept(round_.seal(3, np.ones(50, np.float32)).header)
    round_.assert_result(round_.finish(), {})


def test_a_replay_of_the_last_round_is_refused(simulate, masking):
    simulation = simulate(n=7, masking=masking)
    first = simulation.open()
    old = first.seal(4)
    first.send(old)
    first.send_all(but=[4])
    simulation.follow(first.finish())
    second = simulation.open()
    with pytest.raises(UpdateRejected, match="another round"):
        second.accept(old.header)
    with pytest.raises(OpenError):
        second.accept_tile(old.tiles[0])
    second.send_all()
    second.assert_result(second.finish(), {})


def test_a_revoked_client_is_refused_from_the_next_round_on(simulate, masking):
    simulation = simulate(n=8, masking=masking)
    open_now = simulation.open()
    charter = revoke(simulation, 5)
    simulation.enclave.adopt(charter)
    stale = open_now.seal(5)
    open_now.send_all()  # The open round goes on under the terms that it was opened with.
    simulation.follow(open_now.finish())

    revoked = simulation.clients[5]
    simulation.federation = charter.federation
    simulation.clients = [client.adopt(charter.federation) for client in simulation.clients]
    round_ = simulation.open()
    with pytest.raises(UpdateRejected) as caught:
        round_.accept(stale.header)
    assert (caught.value.client, caught.value.reason) == ("client-5", Rejection.REVOKED)
    with pytest.raises(ReceiptRefused, match="another federation"):
        simulation.join(revoked, round_.offer)
    with pytest.raises(UpdateRejected, match="revoked"):
        round_.accept(round_.seal(5).header)
    round_.send_all(but=[5])
    published = round_.finish()
    assert published.receipt.participants == 7
    assert published.receipt.revision == 2
    assert published.receipt.federation == charter.federation.digest()


def test_a_newcomer_joins_the_next_round(simulate):
    simulation = simulate(n=7)
    newcomer = Identity(b"n" * 32)
    old = simulation.federation
    charter = sign(
        simulation,
        replace(old, revision=2, clients=(*old.clients, Member("newcomer", newcomer.public))),
    )
    adopt(simulation, charter)
    simulation.names.append("newcomer")
    simulation.identities.append(newcomer)
    simulation.rows = np.vstack([simulation.rows, simulation.rows[:1] * np.float32(1.01)])
    # No number is settled yet, so it begins with the founding charter, as everybody did.
    founded = replace(simulation.client(7), federation=old)
    simulation.clients.append(founded.adopt(charter.federation))
    round_ = simulation.open()
    round_.send_all()
    served = simulation.follow(round_.finish())
    assert served.receipt.participants == 8
    assert len(served.certificate.votes) == 7, "it confirms from the number after this one on"
    round_ = simulation.open()
    round_.send_all()
    assert len(simulation.follow(round_.finish()).certificate.votes) == 8


def test_the_chain_shows_where_the_roster_changed(simulate):
    simulation = simulate(n=8)
    follower = simulation.client(0)
    round_ = simulation.open()
    round_.send_all()
    first = simulation.follow(round_.finish())
    charter = revoke(simulation, 5)
    adopt(simulation, charter)
    round_ = simulation.open()
    round_.send_all(but=[5])
    second = simulation.follow(round_.finish())
    held = follower.follow(first)
    with pytest.raises(ReceiptRefused, match="another federation"):
        held.follow(second)
    assert held.adopt(charter.federation).follow(second).last == second.receipt
    assert [each.receipt.revision for each in (first, second)] == [1, 2]


def bad_revisions(simulation):
    gone = Member("gone", b"g" * 32)
    adopt(simulation, sign(simulation, replace(simulation.federation, revision=2, revoked=(gone,))))
    old = simulation.federation
    newer = replace(old, revision=3)
    return {
        "one that a stranger signed": (sign(simulation, newer, simulation.stranger), OpenError),
        "one that nobody signed": (Charter(newer, UNSIGNED), OpenError),
        "the one in force": (sign(simulation, old), ConfigError),
        "one under another authority": (
            sign(simulation, replace(newer, authority=simulation.stranger.public)),
            ConfigError,
        ),
        "one of another federation of this authority": (
            sign(simulation, replace(newer, id=bytes(32))),
            ConfigError,
        ),
        "one that lets a revoked client return": (
            sign(simulation, replace(newer, revoked=())),
            ConfigError,
        ),
        "one with another kind of optimiser": (
            sign(
                simulation,
                replace(newer, terms=replace(newer.terms, optimiser=Optimiser("sgd"))),
            ),
            ConfigError,
        ),
        "one for another model": (
            sign(
                simulation,
                replace(
                    newer,
                    terms=replace(newer.terms, manifest=type(newer.terms.manifest).flat(51)),
                ),
            ),
            ConfigError,
        ),
    }


def test_an_enclave_adopts_no_other_revision(simulate):
    simulation = simulate(n=7)
    for what, (charter, error) in bad_revisions(simulation).items():
        with pytest.raises(error):
            simulation.enclave.adopt(charter)
        assert simulation.open().offer.federation == simulation.federation.digest(), what


def test_a_worker_has_one_point_in_an_attempt(simulate):
    """With two it would hold two shares of one mask, and with them the rows themselves."""
    round_ = simulate(n=7, masking="exact").open()
    round_.send_all()
    round_.close()
    for names in (["worker-1", "worker-1"], ["worker-2", "worker-2"]):
        with pytest.raises(LocalProtocolError):
            Offload(round_.cohort, names)
    offers = Offload(round_.cohort).offers
    assert len({offer.worker for offer in offers}) == len({offer.point for offer in offers}) == 2
