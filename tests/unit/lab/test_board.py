"""Where attackers learn of others' updates."""

import threading

import numpy as np

from ostraka_lab.folder import Board

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
