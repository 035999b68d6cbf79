"""What a node remembers, and how it counts the updates that it has sealed."""

from dataclasses import replace

import pytest

from ostraka.carried.node_state import FileNotebook, Joins, RunNotebook
from ostraka.client.memory import MemoryFile
from ostraka.encoding import pack
from ostraka.errors import Fork, StateError


def offer_of(federation):
    federation.enclave.open([])
    return federation.enclave._founded.intake.offer


def test_what_counts_as_opened_again(carried):
    federation = carried()
    federation.run_round()
    first, second = offer_of(federation), offer_of(federation)
    once = Joins().and_then(first, held=1, nonce=bytes(32))
    assert (once.reopened, once.repeated) == (0, 0)
    same = once.and_then(first, held=1, nonce=b"a" * 32)
    assert (same.reopened, same.repeated) == (0, 1)
    again = same.and_then(second, held=1, nonce=b"b" * 32)
    assert (again.reopened, again.repeated) == (1, 0)
    renumbered = again.and_then(
        replace(second, number=9, round_id=b"c" * 32), held=1, nonce=b"c" * 32
    )
    assert renumbered.reopened == 2
    after = again.and_then(offer_of(federation), held=2, nonce=b"d" * 32)
    assert (after.reopened, after.repeated) == (0, 0)
    assert len(after.nonces) == 4


def notes_of(federation):
    """What a node holds after two rounds."""
    federation.run_round()
    federation.run_round()
    return RunNotebook(federation.scratch[0]).load()


def test_files_of_two_clients_are_never_one(tmp_path):
    names = {FileNotebook(MemoryFile(tmp_path / each, "a"))._path for each in ("m.1", "m.2")}
    assert len(names) == 2


def test_notes_come_back_from_files_and_end_with_the_memory(carried, tmp_path):
    notes = notes_of(carried())
    file = MemoryFile(tmp_path / "a.memory", notes.memory.client)
    notebook = FileNotebook(file)
    notebook.remember(notes.memory)
    notebook.count(notes.joins)
    assert notebook.load() == notes
    file.path.unlink()
    assert notebook.load().after is None


@pytest.mark.parametrize("content", [b"", b"rubbish", pack(b"ostraka/carried-joins/v1")])
def test_damaged_counts_are_refused_and_left_as_they_are(content, carried, tmp_path):
    notes = notes_of(carried())
    notebook = FileNotebook(MemoryFile(tmp_path / "a.memory", notes.memory.client))
    notebook.remember(notes.memory)
    notebook._path.write_bytes(content)
    with pytest.raises(StateError, match=r"a\.memory\.joins: is damaged.*from a copy"):
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
