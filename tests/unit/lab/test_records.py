"""What clients write down: models and receipts."""

import threading

import numpy as np
import pytest

import ostraka
from ostraka.client.results import Model
from ostraka.config import Manifest
from ostraka.messages import Receipt
from ostraka_lab.folder import Records, client_name, client_number

D = 40


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    updates = np.random.default_rng(0).normal(size=(5, D)).astype(np.float32)
    updates[3, 0] = np.nan
    return ostraka.run_round(updates, f=1).receipt


def model(receipt, value=1.0):
    vector = np.full(D, value, np.float32)
    return Model(2, vector, Manifest.flat(D), bytes(32), True, receipt=receipt)


def test_names_are_numbers():
    assert client_name(7) == "client-7"
    assert client_number(client_name(12)) == 12


def test_a_model_and_its_receipt_can_be_read(tmp_path, receipt):
    records = Records(tmp_path / "rounds", writer="client-1")
    assert not records.has(1)
    records.write(model(receipt))
    assert records.has(1)
    np.testing.assert_array_equal(records.model(1), np.full(D, 1.0))
    record = records.round(1)
    assert set(record.rejected) == {3}
    assert record.number == 1


def test_the_first_model_of_all_has_no_receipt_and_is_not_kept(tmp_path):
    records = Records(tmp_path / "rounds", writer="client-1")
    records.write(model(None))
    assert not (tmp_path / "rounds").exists()


def test_the_first_who_writes_is_enough(tmp_path, receipt):
    for writer, value in (("client-1", 1.0), ("client-2", 2.0)):
        Records(tmp_path, writer=writer).write(model(receipt, value))
    assert Records(tmp_path).model(1)[0] == 1.0


def test_many_may_write_at_the_same_time(tmp_path, receipt):
    failed = []

    def write(number):
        try:
            Records(tmp_path, writer=client_name(number)).write(model(receipt))
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-1.f32", "receipt-1.json"]


def test_old_models_are_deleted_and_receipts_stay(tmp_path, receipt):
    records = Records(tmp_path, writer="client-1")
    records.write(model(receipt))
    records.discard_before(2)
    assert [path.name for path in tmp_path.iterdir()] == ["receipt-1.json"]
