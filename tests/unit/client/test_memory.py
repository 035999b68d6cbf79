"""What a client remembers: whole, for itself, and never less than before."""

import errno
import fcntl
import stat
import threading
from dataclasses import replace

import numpy as np
import pytest

from ostraka import files
from ostraka.client import memory as module
from ostraka.client.memory import Memory, MemoryFile
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import LocalProtocolError, MalformedMessage, StateError
from ostraka.files import locked
from ostraka.messages import Receipt
from ostraka.protocol.client import Voted

D = 17


@pytest.fixture
def file(tmp_path):
    return MemoryFile(tmp_path / "alice.memory", "alice")


@pytest.fixture
def memory(charter):
    return Memory("alice", charter(), charter().federation, b"e" * 32)


def receipt(number, **changes):
    zero = bytes(32)
    plain = Receipt(
        number=number,
        round_id=zero,
        previous=zero,
        federation=zero,
        revision=1,
        evidence="simulation",
        failure="",
        aggregate=zero,
        model=zero,
        cohort=zero,
        participants=3,
        kept=3,
        rejected=(),
        commitment=zero,
        disclosed=False,
        selected=(),
        rule="multi-krum",
        note="",
        masking="none",
        distances="inside",
        cautions=(),
        metrics=None,
        signature=UNSIGNED,
    )
    return replace(plain, **changes)


def test_what_is_kept_comes_back(file, memory):
    assert file.load() is None
    for each in (memory, replace(memory, receipts=(receipt(1),))):
        file.save(each)
        assert file.load() == each
    assert each.last == receipt(1)
    assert memory.last is None


def test_only_its_owner_can_read_it(file, memory):
    file.save(memory)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    names = ["alice.memory", "alice.memory.lock"]
    assert sorted(each.name for each in file.path.parent.iterdir()) == names
    assert stat.S_IMODE((file.path.parent / names[1]).stat().st_mode) == 0o600


def test_it_never_goes_back(file, memory, charter):
    ahead = replace(memory, receipts=(receipt(5),))
    file.save(ahead)
    file.save(replace(memory, receipts=(receipt(4),)))
    assert file.load() == ahead
    newer = replace(ahead, charter=charter(revision=2))
    file.save(newer)
    file.save(ahead)
    assert file.load() == newer


def test_a_process_that_was_slow_to_change_it_does_not_set_it_back(file, memory, monkeypatch):
    look, looked, go_on = MemoryFile._read, threading.Event(), threading.Event()

    def slow(self, marked):
        seen = look(self, marked)
        looked.set()
        go_on.wait(0.3)
        return seen

    behind, ahead = (replace(memory, receipts=(receipt(number),)) for number in (4, 5))
    monkeypatch.setattr(MemoryFile, "_read", slow)
    other = threading.Thread(target=file.save, args=(behind,))
    other.start()
    assert looked.wait(30)
    monkeypatch.setattr(MemoryFile, "_read", look)
    file.save(ahead)
    go_on.set()
    other.join()
    assert file.load() == ahead


def test_a_process_that_keeps_it_for_long_is_told_of(file, memory, monkeypatch):
    monkeypatch.setattr(module, "LOCKED_S", 0.1)
    with (
        locked(file.path, seconds=0),
        pytest.raises(StateError, match=r"alice\.memory: another process.*run one at a time"),
    ):
        file.save(memory)
    file.save(memory)


def test_where_there_are_no_locks_it_is_kept_without(file, memory, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    file.save(memory)
    assert file.load() == memory


def test_one_end_of_the_chain_is_remembered(memory):
    with pytest.raises(MalformedMessage):
        decode(Memory, encode(memory)[:-1])
    with pytest.raises(ValueError, match="one end of the chain"):
        replace(memory, receipts=(receipt(1), receipt(2)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: b"\xff" + content[1:],
    ],
)
def test_a_damaged_file_is_never_taken_for_no_file(spoil, kept, memory, connect):
    file = kept
    file.save(memory)
    file.path.write_bytes(spoil(file.path.read_bytes()))
    with pytest.raises(StateError, match=r"\.memory: is damaged.*a new key.*revoke the old"):
        file.load()
    with pytest.raises(StateError, match="damaged"):
        file.save(memory)
    with pytest.raises(StateError, match="damaged"):
        connect()


def stepped(file, memory):
    """A memory on disk as it was before its last two steps, before the last one, and now."""
    file.save(memory)
    kept = [(file.path.read_bytes(), memory)]
    for number in (1, 2):
        memory = replace(memory, receipts=(receipt(number),))
        file.save(memory)
        kept.append((file.path.read_bytes(), memory))
    return kept


def test_a_round_is_appended(file, memory):
    (begun, _), (once, _), (twice, _) = stepped(file, memory)
    assert once.startswith(begun)
    assert twice.startswith(once)
    stored = MemoryFile(file.path, "alice").load()
    assert stored is not None
    assert stored.last == receipt(2)


def test_a_step_that_was_not_written_to_its_end_has_not_happened(file, memory):
    _, (before, stored), (after, ahead) = stepped(file, memory)
    for end in range(len(before), len(after)):
        file.path.write_bytes(after[:end])
        assert MemoryFile(file.path, "alice").load() == stored
    for torn in (after[:-1], after[:-1] + b"?"):
        file.path.write_bytes(torn)
        assert file.save(ahead) == file.load() == ahead
        assert file.path.read_bytes() == after


def test_of_a_step_that_was_being_written_any_part_may_be_there(file, memory):
    """A system may have written the length of a file before its values, which are zeros then."""
    _, (before, stored), (after, _) = stepped(file, memory)
    step = after[len(before) :]
    for cut in range(len(step)):
        zeros, rest = bytes(cut), bytes(len(step) - cut)
        for torn in (zeros, zeros + step[cut:], step[:cut] + rest):
            if torn != step:
                file.path.write_bytes(before + torn)
                assert MemoryFile(file.path, "alice").load() == stored


def test_a_step_goes_behind_what_was_read_under_the_lock(file, memory, charter, monkeypatch):
    """Another thread may have read an older file, of another length, and be slow to say so."""
    file.save(memory)
    older = file.path.read_bytes()
    file.save(newer := replace(memory, charter=charter(revision=2), receipts=(receipt(1),)))

    def change(stored):
        assert stored == newer
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.read_bytes", lambda path: older)
            patch.setattr(MemoryFile, "_marks", lambda self: (0, 0))
            assert file.load() == memory
        return replace(newer, receipts=(receipt(2),))

    changed = file.change(change)
    assert MemoryFile(file.path, "alice").load() == changed


def test_a_vote_of_a_process_that_died_is_on_the_disk_before_its_mark(file, memory, monkeypatch):
    """It may have died between writing the vote and waiting for the disk."""
    file.save(voted := replace(memory, voted=Voted(1, None)))
    mark = file.path.with_name("alice.memory.voted")
    mark.unlink()
    synced = []

    def sync(path):
        assert not mark.exists()
        synced.append(path)

    monkeypatch.setattr(files, "sync", sync)
    assert MemoryFile(file.path, "alice").save(voted) == voted
    assert synced == [file.path]
    assert mark.exists()


def test_of_a_mark_that_was_being_written_any_part_may_be_there(file, memory):
    file.save(replace(memory, voted=Voted(8, None)))
    mark = file.path.with_name("alice.memory.voted")
    before = mark.read_bytes()
    file.save(replace(memory, voted=Voted(9, None)))
    line = mark.read_bytes()[len(before) :]
    for cut in range(len(line)):
        zeros, rest = bytes(cut), bytes(len(line) - cut)
        for torn in (zeros, zeros + line[cut:], line[:cut] + rest):
            mark.write_bytes(before + torn)
            file.save(replace(memory, voted=Voted(9, None)))
            assert mark.read_bytes() == before + line
    mark.write_bytes(before.replace(b"8", b"?"))
    with pytest.raises(StateError, match=r"voted: cannot be read.*a new key"):
        file.load()


@pytest.mark.parametrize("behind", [lambda last: last, lambda last: last[:-1]])
def test_a_damaged_step_is_told_if_others_follow_it(behind, file, memory):
    _, (once, _), (twice, _) = stepped(file, memory)
    spoilt = once[:-1] + bytes([once[-1] ^ 1])
    file.path.write_bytes(spoilt + behind(twice[len(once) :]))
    with pytest.raises(StateError, match=r"\.memory: is damaged.*a new key"):
        file.load()


def test_a_file_of_many_steps_is_written_anew(file, memory, charter, monkeypatch):
    monkeypatch.setattr(module, "_MOST_STEPS", 1)
    (begun, _), (once, _), (twice, _) = stepped(file, memory)
    assert once.startswith(begun)
    assert not twice.startswith(once)
    newer = replace(memory, charter=charter(revision=2), receipts=(receipt(2),))
    file.save(newer)
    assert file.path.read_bytes() == encode(newer)


def test_a_step_that_does_not_fit_on_the_disk_is_told_and_has_not_happened(
    file, memory, monkeypatch
):
    file.save(memory)
    before = file.path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    ahead = replace(memory, receipts=(receipt(1),))
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", full)
        with pytest.raises(StateError, match="No space left"):
            file.save(ahead)
    assert file.path.read_bytes() == before
    assert file.save(ahead) == file.load() == ahead


def test_a_vote_is_marked_line_by_line(file, memory, monkeypatch):
    for number in (1, 2, 3):
        file.save(replace(memory, voted=Voted(number, None)))
    mark = file.path.with_name("alice.memory.voted")
    lines = mark.read_bytes().splitlines(keepends=True)
    assert [int(line.split()[0]) for line in lines] == [1, 2, 3]
    mark.write_bytes(b"".join(lines[:2]) + lines[2][:-1])
    stored = file.load()
    assert stored is not None
    assert stored.voted == Voted(3, None)
    file.save(replace(memory, voted=Voted(4, None)))
    assert mark.read_bytes() == b"".join(lines[:2]) + lines[2].replace(b"3", b"4", 1)
    monkeypatch.setattr(module, "_MOST_MARKS", 1)
    file.save(replace(memory, voted=Voted(5, None)))
    assert mark.read_bytes() == lines[2].replace(b"3", b"5", 1)
    mark.write_bytes(lines[0][:-1])
    with pytest.raises(StateError, match=r"voted: cannot be read.*a new key"):
        file.load()


def test_a_file_that_cannot_be_read_is_never_taken_for_no_file(file, memory):
    file.path.mkdir()
    with pytest.raises(StateError, match="cannot be read"):
        file.load()


def test_the_memory_of_another_client_is_refused(file, memory):
    file.save(memory)
    with pytest.raises(StateError, match="of client 'alice', not of 'bob'"):
        replace(file, client="bob").load()


def test_a_full_disk_is_told(file, memory, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(StateError, match="No space left"):
        file.save(memory)


def test_a_damaged_memory_is_told_even_between_two_calls(alice, kept):
    alice.fetch()
    kept.path.write_bytes(b"noise")
    with pytest.raises(StateError, match="damaged"):
        alice.submit(np.ones(D))


def test_it_lies_beside_the_key_or_where_it_is_asked_for(connect, folder, kept):
    with connect() as client:
        client.fetch()
    assert kept.path.exists()
    elsewhere = folder / "elsewhere"
    with connect(memory=elsewhere) as client:
        client.fetch()
        client.submit(np.ones(D))
    stored = MemoryFile(elsewhere, "alice").load()
    assert stored is not None
    assert stored.last is not None
    assert stored.last.number == 1


def test_the_enclave_is_remembered_before_anything_is_sealed_for_it(connect, kept, service):
    with connect() as client:
        client.fetch()
    stored = kept.load()
    assert stored is not None
    assert (stored.receipt_key, stored.last) == (service.identity.public, None)


def test_the_receipt_is_remembered_before_the_outcome_is_told(alice, kept, service):
    alice.fetch()
    outcome = alice.submit(np.ones(D))
    stored = kept.load()
    assert stored is not None
    assert stored.last == outcome.receipt == service.head


def test_two_processes_of_one_client_do_not_undo_each_other(connect, kept, service):
    with connect() as one, connect() as two:
        one.fetch()
        two.fetch()
        service.publish()
        assert two.fetch().round == 2  # followed receipt 1
        assert one.submit(np.ones(D)).receipt == service.receipts[0]
        one.fetch()
        service.publish(value=1.0)
        service.publish(value=1.0)
        two.fetch()
        with pytest.raises(LocalProtocolError, match="one at a time"):
            one.submit(np.ones(D))
    stored = kept.load()
    assert stored is not None
    assert stored.last == service.receipts[2]


def test_a_memory_that_lies_elsewhere_by_a_link_grows_there(file, memory, tmp_path):
    file.save(memory)
    elsewhere = tmp_path / "elsewhere"
    file.path.rename(elsewhere)
    file.path.symlink_to(elsewhere)
    ahead = replace(memory, receipts=(receipt(1),))
    assert file.save(ahead) == file.load() == ahead
    assert file.path.is_symlink()
