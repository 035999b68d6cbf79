"""What a driver does twice or by halves, or a host too slowly, leads to nothing false."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.protocol.conftest import HostSpool

from ostraka import calibration, events, run_round
from ostraka.calibration import Costs
from ostraka.errors import ConfigError, Rejection, UpdateRejected
from ostraka.protocol.enclave import Dispute, Threads


def test_a_lane_of_a_pass_that_failed_does_not_write_into_the_next(simulate, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(32, 1_024)).astype(np.float32)
    with ThreadPoolExecutor(2) as pool:
        simulation = simulate(rows=rows, tile=512, budget=0)
        simulation.threads = Threads(2, pool.map)
        round_ = simulation.open()
        round_.send_all()
        round_.close()
        round_.measure()
        round_.spool[round_.uploads[0], 0] = b""
        slow, read = {(5, 1): 0.1, (31, 1): 0.2}, HostSpool.read

        def slowly(self, row, index, start, size):
            """From a disk that takes its time with some of them."""
            time.sleep(slow.get((row, index), 0))
            return read(self, row, index, start, size)

        monkeypatch.setattr(HostSpool, "read", slowly)
        with pytest.raises(UpdateRejected):
            round_.try_to_average()
        published = round_.try_to_average()
    round_.assert_result(published, {0: Rejection.CHANGED})


def disputed(round_, *, but=()):
    round_.send_all(but=but)
    round_.close()
    attempt = round_.offload()
    attempt.connect(attempt.accepts())
    attempt.encode()
    answers = attempt.answers()
    told = attempt.told(0)
    told[0] = told[0] * 1.5 if told.dtype == np.float64 else told[0] ^ 1
    dispute = attempt.masking.decode([attempt.lie(0, told), *answers[1:]])
    assert isinstance(dispute, Dispute)
    return dispute


def test_a_twin_shown_in_a_dispute_blames_no_worker(simulate, offloaded):
    """A client in league with the host has two tiles that open in one place."""
    round_ = simulate(masking=offloaded, budget=0).open()
    forgery = round_.forge(2)
    round_.send(forgery)
    dispute = disputed(round_, but=[2])
    twin = forgery.tile(1, -round_.simulation.rows[2][16:32])
    round_.spool[(round_.senders[twin.upload_id], twin.upload_id), 1] = bytes(twin.ciphertext)
    with pytest.raises(UpdateRejected, match="client-2"):
        dispute.settle()


def test_every_audit_has_a_challenge_of_its_own(simulate):
    """What the first check told about its challenge must not help to pass an audit."""
    encoder = disputed(simulate(masking="exact", workers=4).open())._encoder
    checks = [encoder._scratch[0].check, *encoder.auditors(), *encoder.auditors()]
    assert len({check._challenge.tobytes() for check in checks}) == 9


def test_law10_equal_rows_of_many_tiles_are_no_distance_apart(simulate):
    """What the dither adds is taken off again for every tile, not for some."""
    row = np.random.default_rng(0).normal(size=4_096)
    rows = np.tile(row, (6, 1)).astype(np.float32)
    round_ = simulate(rows=rows, masking="exact", tile=256).open()
    round_.send_all()
    published = round_.finish()
    clip = 4 * 2.0 ** np.ceil(np.log2(np.linalg.norm(row)))
    distances = round_.measured.gram.distances() * clip**2
    assert np.abs(distances).max() <= published.distance_error


@pytest.mark.parametrize("size", [1, 2.0**50])
def test_a_sketch_does_not_hide_why_a_row_is_out(simulate, masking, size):
    rows = (size * np.random.default_rng(0).normal(size=(7, 5_000))).astype(np.float32)
    terms = {"sketch": 4096, "defence": "multi-krum"}  # nnm takes no sketch as short as this
    round_ = simulate(rows=rows, masking=masking, tile=1024, **terms).open()
    bad = rows[2].copy()
    bad[20] = np.nan
    norm = float(np.linalg.norm(rows[2].astype(np.float64)))
    round_.send(round_.forge(2, bad, norm=norm))
    round_.send_all(but=[2])
    assert round_.finish().rejected == {"client-2": Rejection.NOT_FINITE}


ROWS = np.random.default_rng(0).normal(size=(9, 40)).astype(np.float32)


@pytest.fixture
def costs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration.save(Costs(gram=1.0, mask=(1.0, 1.0, 1.0)))
    return calibration.path()


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"", b'{"gram": 1%s}' % (b"0" * 400)])
def test_a_damaged_table_of_costs_is_a_config_error_that_names_the_file(costs, raw):
    costs.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"costs\.json"):
        run_round(ROWS, f=2, distances="auto")


@pytest.mark.usefixtures("costs")
def test_auto_has_nothing_to_choose_where_there_are_no_masks():
    result = run_round(ROWS, f=2, masking="none", distances="auto")
    assert not any(isinstance(each, events.DistancesChosen) for each in result.events)


def test_a_receipt_warns_of_gaussian_masks_only_where_some_were_sent():
    assert run_round(ROWS, f=2, masking="gaussian", distances="inside").receipt.cautions == ()
