"""What a node remembers, and how it counts the updates that it has sealed."""

from dataclasses import replace

import pytest

from ostraka.carried.node_state import FileNotebook, Joins, RunNotebook
from ostraka.client.memory import MemoryFile
from ostraka.encoding import pack
from ostraka.errors import Fork, StateError


def test_no_challenge_is_good_twice_and_openings_are_counted_one_by_one():
    once = Joins().and_then(bytes(32), b"r" * 32)
    assert once.has(bytes(32))
    assert not once.has(b"a" * 32)
    again = once.and_then(b"a" * 32, b"r" * 32)
    assert (again.times(b"r" * 32), again.times(b"s" * 32)) == (2, 0)


def notes_of(federation):
    """What a node holds after two rounds."""
    federation.run_round()
    federation.run_round()
    return RunNotebook(federation.scratch[0]).load()


def test_files_of_two_clients_are_never_one(tmp_path):
    names = {FileNotebook(MemoryFile(tmp_path / each, "a"))._path for each in ("m.1", "m.2")}
    assert len(names) == 2


def test_notes_come_back_from_files(carried, tmp_path):
    notes = notes_of(carried())
    notebook = FileNotebook(MemoryFile(tmp_path / "a.memory", notes.memory.client))
    notebook.remember(notes.memory)
    notebook.count(notes.joins)
    assert notebook.load() == notes
    assert (notes.memory.voted.number, notes.memory.sent.number) == (2, 2)


def test_a_node_whose_memory_is_gone_needs_a_new_key(carried, tmp_path):
    """It may have voted, and must not vote again. What it has sealed shows that it had one."""
    notes = notes_of(carried())
    file = MemoryFile(tmp_path / "a.memory", notes.memory.client)
    notebook = FileNotebook(file)
    notebook.remember(notes.memory)
    notebook.count(notes.joins)
    file.path.unlink()
    with pytest.raises(StateError, match=r"a\.memory: is missing.*make a new key"):
        notebook.load()


@pytest.mark.parametrize("content", [b"", b"rubbish", pack(b"ostraka/carried-joins/v2")])
def test_damaged_counts_are_refused_and_left_as_they_are(content, carried, tmp_path):
    notes = notes_of(carried())
    notebook = FileNotebook(MemoryFile(tmp_path / "a.memory", notes.memory.client))
    notebook.remember(notes.memory)
    notebook._path.write_bytes(content)
    with pytest.raises(StateError, match=r"a\.memory\.joins: is damaged.*make a new key"):
        notebook.load()
    assert notebook._path.read_bytes() == content


def test_two_receipts_for_one_round_are_never_saved_over_each_other(carried, tmp_path):
    memory = notes_of(carried()).memory
    assert memory.last is not None
    file = MemoryFile(tmp_path / "a.memory", memory.client)
    file.save(memory)
    other = replace(memory, receipts=(replace(memory.last, participants=9),))
    with pytest.raises(Fork):
        file.save(other)
    assert file.load() == memory
