import shutil

import pytest

from ostraka.enclave.storage.ledger import Ledger, Skipped
from ostraka.errors import StateError


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ledger"


@pytest.fixture
def sealer(life):
    return life.sealer()


def record(number):
    return Skipped(number, f"reason {number}")


def written(folder, sealer, numbers):
    ledger = Ledger(folder, sealer)
    ledger.read()
    for number in numbers:
        ledger.append(record(number))
    return ledger


def path(folder, index):
    return folder / f"{index:08d}.sealed"


def read(folder, sealer):
    found = Ledger(folder, sealer).read()
    assert found == [record(each.number) for each in found if isinstance(each, Skipped)]
    return [each.number for each in found if isinstance(each, Skipped)]


def test_reading_gives_what_was_appended(folder, sealer):
    assert read(folder, sealer) == []
    assert len(written(folder, sealer, range(3))) == 3
    assert read(folder, sealer) == [0, 1, 2]


def test_a_ledger_that_was_read_goes_on(folder, sealer):
    written(folder, sealer, range(3))
    written(folder, sealer, range(3, 5))
    assert read(folder, sealer) == [0, 1, 2, 3, 4]


def test_a_failed_append_can_be_repeated(folder, sealer, monkeypatch):
    ledger = written(folder, sealer, range(2))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        with pytest.raises(OSError, match="No space"):
            ledger.append(record(2))
    assert read(folder, sealer) == [0, 1]
    ledger.append(record(3))
    assert read(folder, sealer) == [0, 1, 3]


def exchange(folder, _):
    first, second = path(folder, 1), path(folder, 2)
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def drop_first(folder, _):
    path(folder, 0).unlink()


def drop_middle(folder, _):
    path(folder, 2).unlink()


def drop_middle_and_close_the_gap(folder, _):
    for index in (3, 4):
        path(folder, index).replace(path(folder, index - 1))


def repeat(folder, _):
    shutil.copy(path(folder, 1), path(folder, 2))


def repeat_at_the_end(folder, _):
    shutil.copy(path(folder, 4), path(folder, 5))


def splice_from_another_ledger(folder, sealer):
    other = folder.with_name("other")
    written(other, sealer, range(5))
    shutil.copy(path(other, 3), path(folder, 3))


def last_of_another_ledger(folder, sealer):
    other = folder.with_name("other")
    written(other, sealer, range(5))
    shutil.copy(path(other, 4), path(folder, 4))


def append_from_another_ledger(folder, sealer):
    other = folder.with_name("other")
    written(other, sealer, range(6))
    shutil.copy(path(other, 5), path(folder, 5))


def old_end_on_a_new_middle(folder, sealer):
    """Cut the tail, let the enclave write another, and put the end of the old one behind it."""
    old = path(folder, 4).read_bytes()
    for index in (3, 4):
        path(folder, index).unlink()
    written(folder, sealer, [3])
    path(folder, 4).write_bytes(old)


def another_name(folder, _):
    path(folder, 4).replace(folder / "4.sealed")


def another_purpose(folder, sealer):
    path(folder, 4).write_bytes(sealer.seal("model-00000004.sealed", b""))


def not_an_entry(folder, sealer):
    path(folder, 4).write_bytes(sealer.seal("ledger", b"of a later version"))


ATTACKS = {
    "two records exchanged": (exchange, r"00000001\.sealed: holds record 2"),
    "the first one dropped": (drop_first, r"00000000\.sealed: is missing, but later"),
    "one in the middle dropped": (drop_middle, r"00000002\.sealed: is missing, but later"),
    "one dropped and the gap closed": (drop_middle_and_close_the_gap, "2.sealed: holds record 3"),
    "one repeated": (repeat, r"00000002\.sealed: holds record 1"),
    "the last one repeated": (repeat_at_the_end, r"00000005\.sealed: holds record 4"),
    "one from another ledger": (splice_from_another_ledger, "3.sealed: does not continue"),
    "the last one from another ledger": (last_of_another_ledger, "4.sealed: does not continue"),
    "one more, from another ledger": (append_from_another_ledger, "5.sealed: does not continue"),
    "the old end on a new middle": (old_end_on_a_new_middle, "4.sealed: does not continue"),
    "a file that has another name": (another_name, "is not a record of a ledger: move it away"),
    "another kind of sealed file": (another_purpose, "does not open under this enclave's key"),
    "a record of an unknown form": (not_an_entry, "of another version"),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_the_host_cannot_edit_a_ledger(folder, sealer, what):
    attack, message = ATTACKS[what]
    written(folder, sealer, range(5))
    attack(folder, sealer)
    with pytest.raises(StateError, match=message):
        read(folder, sealer)


def test_the_host_can_cut_the_tail_and_brings_back_an_older_state(folder, sealer):
    """Nothing on its own disk could prevent that. Clients refuse the rounds that follow."""
    written(folder, sealer, range(5))
    for index in (4, 3):
        path(folder, index).unlink()
    assert read(folder, sealer) == [0, 1, 2]


def test_a_ledger_of_another_enclave_does_not_open(folder, sealer, life):
    written(folder, sealer, range(2))
    for other in (life.sealer("another"), life.sealer(key=bytes(32))):
        with pytest.raises(StateError, match=r"00000000\.sealed: does not open"):
            read(folder, other)


def test_every_changed_byte_is_refused(folder, sealer):
    written(folder, sealer, range(3))
    for index in range(3):
        file = path(folder, index)
        whole = file.read_bytes()
        for at in range(len(whole)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
            with pytest.raises(StateError, match=file.name):
                read(folder, sealer)
        file.write_bytes(whole)
    assert read(folder, sealer) == [0, 1, 2]


def test_every_cut_file_is_refused(folder, sealer):
    """Files get their names when they are whole, so no crash leaves a part of one."""
    written(folder, sealer, range(2))
    for index in range(2):
        file = path(folder, index)
        whole = file.read_bytes()
        for length in range(len(whole)):
            file.write_bytes(whole[:length])
            with pytest.raises(StateError, match=file.name):
                read(folder, sealer)
        file.write_bytes(whole)
