"""A round has one result, whatever a host does: two would differ by one client's update."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from ostraka.errors import (
    LocalProtocolError,
    OpenError,
    ReceiptRefused,
    Rejection,
    UpdateRejected,
)
from ostraka.protocol.enclave import Inside, Threads, gather

pytestmark = pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")


def closed(simulation):
    round_ = simulation.open()
    round_.send_all()
    round_.close()
    return round_


def test_two_attempts_are_not_both_published(simulate, masking, defence):
    round_ = closed(simulate(masking=masking, defence=defence))
    first, second = (gather(round_.cohort, [Inside(round_.cohort).measure()]) for _ in range(2))
    round_.try_to_average(measured=first)
    with pytest.raises(LocalProtocolError, match="published once"):
        round_.try_to_average(measured=second)


def test_two_rounds_of_one_number_are_not_both_published(simulate, defence):
    simulation = simulate(defence=defence)
    rounds = [closed(simulation), closed(simulation)]
    for round_ in rounds:
        round_.measure()
    rounds[0].average()
    with pytest.raises(LocalProtocolError, match="published once"):
        rounds[1].average()


def test_an_attempt_is_decoded_once(simulate, offloaded):
    round_ = closed(simulate(masking=offloaded))
    attempt = round_.offload()
    attempt.connect(attempt.accepts())
    attempt.encode()
    answers = attempt.answers()
    attempt.masking.decode(answers)
    with pytest.raises(LocalProtocolError, match="decoded"):
        attempt.masking.decode(answers)


def test_an_enclave_follows_only_what_it_signed_and_others_confirmed(simulate):
    simulation = simulate()
    round_ = closed(simulation)
    round_.measure()
    proposed = round_.average()
    served, follow = simulation.confirm(proposed), simulation.enclave.follow
    with pytest.raises(OpenError):
        follow(replace(served, receipt=replace(served.receipt, number=77)), proposed.state)
    with pytest.raises(LocalProtocolError, match="model"):
        follow(served, simulation.states[0])
    with pytest.raises(ReceiptRefused, match="nobody confirms"):
        follow(replace(served, certificate=None), proposed.state)
    follow(served, proposed.state)
    with pytest.raises(LocalProtocolError, match="once"):
        follow(served, proposed.state)


def test_what_is_averaged_is_what_was_measured_even_if_the_disk_changes(simulate, masking):
    """Two uploads open under one key; the host shows one on arrival and the other to the sum."""
    rng = np.random.default_rng(0)
    rows = (1 + 0.1 * rng.normal(size=(7, 50))).astype(np.float32)
    rows[5] += rng.normal(size=50).astype(np.float32)  # the one to be dropped
    round_ = simulate(masking=masking, rows=rows, defence="multi-krum", budget=0).open()
    round_.send_all(but=[3])
    forged = round_.forge(3)
    round_.send(forged)
    round_.close()
    round_.measure()
    upload, tiling = round_.uploads[3], round_.terms.tiling
    for index in range(tiling.count):
        twin = forged.tile(index, -rows[3][tiling.part(index)])
        round_.spool[upload, index] = bytes(twin.ciphertext)
    round_.assert_result(round_.average(), {3: Rejection.CHANGED})


def test_every_lane_ends_before_an_error_is_raised():
    """A thread that ran on would write into memory that the next pass uses."""
    ended = []

    def work(thread, rows):
        if thread == 0:
            raise UpdateRejected("client-0", "x")  # type: ignore[arg-type]
        for _ in range(200):
            np.dot(np.ones(10_000), np.ones(10_000))
        ended.append(thread)

    with ThreadPoolExecutor(3) as pool:
        with pytest.raises(UpdateRejected):
            Threads(3, pool.map).groups(3, 1, work)
        assert sorted(ended) == [1, 2]
