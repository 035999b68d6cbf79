"""The folder of a run: its names, models and receipts, and the board of attackers."""

import threading

import numpy as np
import pytest

import ostraka
from ostraka.client.results import Model
from ostraka.config import Manifest
from ostraka.errors import ConfigError, ToleranceUsedUp
from ostraka.messages import Receipt
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import Board, Records, RunFolder, client_name, client_number


def test_what_was_asked_for_and_what_follows_from_it_are_kept(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.save(Experiment(clients=9), dimension=5, command="ostraka train")
    experiment, facts = folder.load()
    assert experiment == Experiment(clients=9)
    assert facts["dimension"] == 5


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"is not empty.*--resume"):
        RunFolder(tmp_path).make()
    with pytest.raises(ConfigError, match="is not empty"):
        RunFolder(tmp_path / "thesis.txt").make()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run").make()


DAMAGED = {
    "nothing": None,
    "half of a file": '{"clients": 9',
    "a list": "[1, 2]",
    "numbers that cannot work": '{"clients": "many"}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_run_that_cannot_be_read_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(ConfigError, match=r"experiment\.json"):
        RunFolder(tmp_path).load()


D = 40


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    updates = np.random.default_rng(0).normal(size=(5, D)).astype(np.float32)
    updates[3, 0] = np.nan
    with pytest.warns(ToleranceUsedUp):
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


UPDATE = np.arange(4, dtype=np.float32)


def test_what_was_told_is_read_in_order(tmp_path):
    board = Board(tmp_path / "board")
    for client in (3, 1, 2):
        board.tell(client, 7, client * UPDATE)
    np.testing.assert_array_equal(board.read([1, 2, 3], 7), np.outer([1, 2, 3], UPDATE))


def test_a_reader_waits_for_the_last_one(tmp_path):
    board = Board(tmp_path / "board")
    board.tell(1, 1, UPDATE)
    later = threading.Timer(0.2, board.tell, [2, 1, UPDATE])
    later.start()
    assert len(board.read([1, 2], 1)) == 2
    later.join()


def test_nobody_waits_for_who_has_left(tmp_path):
    board = Board(tmp_path / "board")
    board.tell(1, 1, UPDATE)
    board.leave(2)
    assert len(board.read([1, 2], 1)) == 1
    assert len(board.read([2], 1)) == 0
    board.forget()
    board.tell(2, 2, UPDATE)
    assert len(board.read([2], 2)) == 1


def test_old_rounds_are_forgotten(tmp_path):
    board = Board(tmp_path / "board")
    for number in range(1, 6):
        board.tell(1, number, UPDATE)
    kept = [path.parent.name for path in board.folder.glob("*/*.f32")]
    assert sorted(kept) == ["round-4", "round-5"]
