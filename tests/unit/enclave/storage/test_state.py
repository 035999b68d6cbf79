import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ostraka.attestation.claims import in_process
from ostraka.core.optimiser import Optimiser
from ostraka.crypto.identity import Identity
from ostraka.enclave.storage.ledger import Ledger
from ostraka.enclave.storage.sealed_file import SealedFile
from ostraka.enclave.storage.state import EnclaveState
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, OpenError, ReceiptRefused, StateError
from ostraka.messages import Charter, vector_digest
from ostraka.protocol.client import Client

SUCCESSOR = b"s" * 32


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def seal(estate):
    return b"sealed"


def test_a_new_folder_is_fresh_until_something_is_founded(life):
    state = life.open()
    assert state.fresh
    assert state.head is None
    assert state.published() == state.charters == ()
    for use in ("receipt_key", "federation", "last_state"):
        with pytest.raises(LocalProtocolError, match="nothing was founded"):
            getattr(state, use)
    with pytest.raises(LocalProtocolError, match="nothing was founded"):
        state.start(evidence="sgx")
    state.found(life.charter(), life.state_of(0))
    assert not state.fresh
    assert state.charters == (life.charter(),)
    assert files(state.folder) == [
        "identity.sealed",
        "ledger/00000000.sealed",
        "lock",
        "model-00000000.sealed",
    ]


def test_what_was_written_is_there_after_a_restart(life):
    with life.founded() as state:
        life.publish(state, 2)
        state.skip(3, "the quorum was missed")
        state.adopt(life.charter(2))
        life.publish(state)
        key, published = state.receipt_key, state.published()
    with life.open() as state:
        assert state.receipt_key == key
        assert state.published() == published
        assert state.head == published[-1].receipt
        assert [each.receipt.number for each in state.published(2)] == [2, 3]
        assert state.published(4) == ()
        assert state.published(0) == published
        assert state.charters == (life.charter(), life.charter(2))
        assert state.federation.revision == 2
        assert np.array_equal(state.last_state.model, life.state_of(3).model)
        assert np.array_equal(state.last_state.moments, life.state_of(3).moments)
        assert state.notices == []


def test_the_enclave_goes_on_from_the_last_published_model(life):
    with life.founded() as state:
        life.publish(state, 2)
        before = state.start(evidence="simulation")
    with life.open() as state:
        enclave = state.start(evidence="simulation")
        assert enclave.receipt_key == before.receipt_key
        offer = enclave.open_round().offer
        assert offer.number == 3
        assert offer.model == vector_digest(life.state_of(2).model)
        assert offer.round_id != before.open_round().offer.round_id
        assert offer.key != before.open_round().offer.key


def test_the_last_aggregate_is_there_after_a_restart(life):
    last = np.linspace(-1, 1, 5, dtype="<f4")
    after = replace(life.state_of(1), last=last)
    with life.founded() as state:
        receipt = life.receipt(state, after, aggregate=vector_digest(last))
        state.hold(life.pending(state, receipt), after)
    with life.open() as state:
        life.release(state)
    with life.open() as state:
        assert np.array_equal(state.last_state.last, last)
        state.start(evidence="simulation")
        state._last = replace(after, last=last + 1)
        with pytest.raises(LocalProtocolError, match="last aggregate is not the one"):
            state.start(evidence="simulation")


def joins(life, state, last):
    """Whether a client that holds this receipt takes part in the enclave's next round."""
    client = Client("b", Identity(b"b" * 32), state.federation, state.receipt_key, last)
    offer = state.start(evidence="simulation").open_round().offer
    client.join(offer, in_process(offer, state.receipt_key))


def test_clients_follow_an_enclave_through_a_restart_and_refuse_one_that_was_set_back(life):
    with life.founded() as state:
        life.publish(state)
        shutil.copytree(state.folder, life.root / "yesterday")
        life.publish(state, 2)
        last = state.head
    with life.open() as state:
        joins(life, state, last)
    with life.open("yesterday") as state:
        assert state.head.number == 1  # The state itself is in order.
        with pytest.raises(ReceiptRefused, match="round 2 is not newer than round 3"):
            joins(life, state, last)


def test_two_enclaves_of_the_same_code_have_two_identities(life):
    assert life.founded("one").receipt_key != life.founded("two").receipt_key


def test_models_are_kept_as_told(life):
    state = life.founded(keep=2)
    life.publish(state, 4)
    assert [name for name in files(state.folder) if name.startswith("model")] == [
        "model-00000003.sealed",
        "model-00000004.sealed",
    ]


def test_no_file_shows_what_is_in_it(life):
    state = life.founded()
    life.publish(state)
    model = life.state_of(1).model.tobytes()
    for name in files(state.folder):
        content = (state.folder / name).read_bytes()
        assert model not in content
        assert state.receipt_key not in content
        assert state.head.signature not in content


def test_one_process_at_a_time(life):
    state = life.founded()
    with pytest.raises(StateError, match="another process uses this state"):
        life.open()
    state.close()
    life.open().close()


def test_a_state_that_does_not_open_can_be_opened_again(life):
    """The lock is not left behind."""
    life.founded().close()
    for _ in range(2):
        with pytest.raises(StateError, match="does not open"):
            life.open(sealer=life.sealer("another"))
    life.open().close()


def test_a_closed_state_takes_nothing_more(life):
    state = life.founded()
    pending = life.pending(state, life.receipt(state, life.state_of(1)))
    state.close()
    for use in (
        lambda: state.hold(pending, life.state_of(1)),
        lambda: state.adopt(life.charter(2)),
        lambda: state.skip(1, ""),
        lambda: state.hand_over(SUCCESSOR, bytes(32), seal),
    ):
        with pytest.raises(LocalProtocolError, match="closed"):
            use()
    assert "model-00000001.sealed" not in files(state.folder)
    fresh = life.open("fresh")
    fresh.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        fresh.found(life.charter(), life.state_of(0))
    assert files(fresh.folder) == ["lock"]


def test_a_closed_state_publishes_nothing(life):
    state = life.founded()
    life.hold(state)
    state.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        life.release(state)
    with life.open() as state:
        assert state.head is None
        life.release(state)


def test_a_state_is_founded_once(life):
    state = life.founded()
    with pytest.raises(StateError, match="holds an enclave's state already"):
        state.found(life.charter(), life.state_of(0))


def test_only_the_authority_founds_a_federation(life):
    state = life.open()
    with pytest.raises(OpenError):
        state.found(life.charter(authority=Identity(b"x" * 32)), life.state_of(0))
    assert state.fresh
    assert files(state.folder) == ["lock"]


def test_the_first_model_is_the_one_that_the_authority_signed(life):
    state = life.open()
    with pytest.raises(LocalProtocolError, match="not the one that the authority has signed"):
        state.found(life.charter(), life.state_of(1))
    assert files(state.folder) == ["lock"]


def test_the_first_model_must_fit(life):
    state = life.open()
    for bad in (
        replace(life.state_of(0), model=np.zeros(4, "<f4")),
        replace(life.state_of(0), moments=(np.zeros(6),)),
    ):
        with pytest.raises(LocalProtocolError, match="5 values"):
            state.found(life.charter(), bad)
    assert files(state.folder) == ["lock"]


PUBLICATIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an older round": ({"number": 1}, LocalProtocolError, "does not follow"),
    "a later round": ({"number": 3}, LocalProtocolError, "does not follow"),
    "another chain": ({"previous": b"x" * 32}, LocalProtocolError, "does not follow"),
    "another federation": ({"federation": b"x" * 32}, LocalProtocolError, "never adopted"),
    "another model": ({"model": b"x" * 32}, LocalProtocolError, "not the one of the receipt"),
}


@pytest.mark.parametrize("what", PUBLICATIONS)
def test_what_does_not_follow_is_not_held(life, what):
    changes, error, message = PUBLICATIONS[what]
    state = life.founded()
    life.publish(state)
    before = files(state.folder)
    with pytest.raises(error, match=message):
        life.hold(state, **changes)
    assert state.pending is None
    assert files(state.folder) == before
    life.publish(state)
    assert state.head.number == 2


def test_only_the_enclave_s_own_receipt_is_held(life):
    state = life.founded()
    receipt = Identity(b"x" * 32).sign(life.receipt(state, life.state_of(1)))
    with pytest.raises(OpenError):
        state.hold(life.pending(state, receipt), life.state_of(1))
    assert state.pending is None


def test_only_a_newer_revision_of_the_authority_is_adopted(life):
    state = life.founded()
    with pytest.raises(OpenError):
        state.adopt(life.charter(2, authority=Identity(b"x" * 32)))
    with pytest.raises(LocalProtocolError, match="does not replace"):
        state.adopt(life.charter())
    with pytest.raises(LocalProtocolError, match="another kind of optimiser"):
        state.adopt(life.charter(2, optimiser=Optimiser("sgd")))
    assert state.charters == (life.charter(),)


def swap(folder, one, other):
    first, second = folder / one, folder / other
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def restore_model(life, state):
    """The model of round 3 as it was when round 3 was published another time, from a copy."""
    shutil.copytree(state.folder, life.root / "copy")
    other = life.open("copy")
    model = life.state_of(9)
    other.hold(life.pending(other, life.receipt(other, model)), model)
    life.release(other)
    life.publish(state)
    shutil.copy(other.folder / "model-00000003.sealed", state.folder)


def other_ledger(life, state):
    other = life.founded("other")
    life.publish(other, 2)
    shutil.rmtree(state.folder / "ledger")
    shutil.copytree(other.folder / "ledger", state.folder / "ledger")


def other_identity(life, state):
    shutil.copy(life.founded("other").folder / "identity.sealed", state.folder)


def other_enclave(life, state):
    other = life.founded("other", life.sealer("another"))
    life.publish(other, 2)
    shutil.copy(other.folder / "model-00000002.sealed", state.folder)


def other_machine(life, state):
    other = life.founded("other", life.sealer(key=b"m" * 32))
    life.publish(other, 2)
    shutil.copytree(other.folder, state.folder, dirs_exist_ok=True)


ATTACKS = {
    "two models exchanged": (
        lambda life, state: swap(state.folder, "model-00000001.sealed", "model-00000002.sealed"),
        r"model-00000002\.sealed: does not open",
    ),
    "the identity in the place of the model": (
        lambda life, state: swap(state.folder, "identity.sealed", "model-00000002.sealed"),
        r"identity\.sealed: does not open",
    ),
    "a record in the place of the model": (
        lambda life, state: shutil.copy(
            state.folder / "ledger" / "00000002.sealed", state.folder / "model-00000002.sealed"
        ),
        r"model-00000002\.sealed: does not open",
    ),
    "an old model with the new ledger": (
        lambda life, state: shutil.copy(
            state.folder / "model-00000001.sealed", state.folder / "model-00000002.sealed"
        ),
        r"model-00000002\.sealed: does not open",
    ),
    "a model of the same round from another course of events": (
        restore_model,
        r"model-00000003\.sealed: is not the state after round 3",
    ),
    "no model": (
        lambda life, state: (state.folder / "model-00000002.sealed").unlink(),
        r"model-00000002\.sealed: is missing",
    ),
    "no identity": (
        lambda life, state: (state.folder / "identity.sealed").unlink(),
        r"identity\.sealed: is missing",
    ),
    "no ledger": (
        lambda life, state: shutil.rmtree(state.folder / "ledger"),
        "ledger: is missing, but models are there",
    ),
    "the ledger of another enclave of the same code": (
        other_ledger,
        r"identity\.sealed: is the identity of another ledger",
    ),
    "the identity of another enclave of the same code": (
        other_identity,
        r"identity\.sealed: is the identity of another ledger",
    ),
    "the model of other code with the same key": (
        other_enclave,
        r"model-00000002\.sealed: does not open",
    ),
    "everything from another machine": (other_machine, r"00000000\.sealed: does not open"),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_the_host_cannot_edit_the_state(life, what):
    attack, message = ATTACKS[what]
    state = life.founded()
    life.publish(state, 2)
    attack(life, state)
    state.close()
    with pytest.raises(StateError, match=message):
        life.open()


def test_a_lost_first_start_is_begun_again(life):
    """Identity and model are there, and the ledger is not: the process died before."""
    with life.founded() as state:
        shutil.rmtree(state.folder / "ledger")
    with life.open() as state:
        assert state.fresh
        state.found(life.charter(), life.state_of(0))
        key = state.receipt_key
    with life.open() as state:
        assert state.receipt_key == key


HOST = Identity(b"h" * 32)


def host_s_charter(life):
    """The host can be the authority of a federation of its own, and sign any successor there."""
    federation = replace(life.charter().federation, authority=HOST.public, successors=(SUCCESSOR,))
    return HOST.sign(Charter(federation, UNSIGNED))


def lay_seed(victim, folder):
    shutil.copy(victim.folder / "identity.sealed", folder)


def test_a_seed_that_the_host_lays_into_an_empty_folder_is_not_founded_upon(life):
    """Else the host's ledger would have the victim's key, and could be exported to any code."""
    victim, host = life.founded("victim"), life.open("host")
    lay_seed(victim, host.folder)
    host.found(host_s_charter(life), life.state_of(0))
    assert host.receipt_key != victim.receipt_key
    assert life.estate(host, SUCCESSOR).seed != life.estate(victim, SUCCESSOR).seed


def test_a_seed_that_the_host_exchanges_while_a_ledger_is_founded_is_not_founded_upon(
    life, monkeypatch
):
    victim, host = life.founded("victim"), life.open("host")
    write = SealedFile.write

    def write_and_exchange(file, plaintext):
        write(file, plaintext)
        lay_seed(victim, host.folder)

    with monkeypatch.context() as patched:
        patched.setattr(SealedFile, "write", write_and_exchange)
        host.found(host_s_charter(life), life.state_of(0))
    assert host.receipt_key != victim.receipt_key
    host.close()
    with pytest.raises(StateError, match="is the identity of another ledger"):
        life.open("host")


def test_a_seed_that_the_host_exchanges_before_a_hand_over_does_not_leave(life):
    victim, host = life.founded("victim"), life.founded("host", charter=host_s_charter(life))
    lay_seed(victim, host.folder)
    with pytest.raises(StateError, match="is the identity of another ledger"):
        host.hand_over(SUCCESSOR, bytes(32), seal)
    assert host.handed_over_to is None


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_seed_from_a_hand_over_that_was_cut_short_is_not_founded_upon(life, monkeypatch, rounds):
    """The process dies before the record, and the host deletes what a hand-over left there."""
    old = life.founded("old")
    life.publish(old, rounds)
    estate = life.estate(old, SUCCESSOR)

    def dies(*_):
        raise KeyboardInterrupt

    with life.open("new") as new:
        new.migration.write(b"pending")
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "append", dies)
            with pytest.raises(KeyboardInterrupt):
                new.inherit(estate, b"o" * 32)
        assert SealedFile(new.folder / "identity.sealed", new.sealer).read() == estate.seed
    for left in ("migration.sealed", f"model-{rounds:08d}.sealed"):
        (new.folder / left).unlink()
    with life.open("new") as new:
        new.found(host_s_charter(life), life.state_of(0))
        assert new.receipt_key != old.receipt_key
        assert life.estate(new, SUCCESSOR).seed != estate.seed


def test_leftovers_are_removed_with_a_notice(life):
    with life.founded() as state:
        (state.folder / "model-00000001.sealed.partial").write_bytes(b"half")
        (state.folder / "ledger" / "00000001.sealed.partial").write_bytes(b"half")
    with life.open() as state:
        assert state.notices == ["2 files that were never finished are removed"]
        assert not [name for name in files(state.folder) if "partial" in name]


def test_a_system_without_locks_is_noted(life, monkeypatch):
    def absent(*_):
        raise OSError(38, "no")

    monkeypatch.setattr("fcntl.flock", absent)
    with life.open() as state:
        assert state.notices == ["this system has no file locks: start one process at a time"]


def test_a_retired_enclave_does_not_start(life):
    with life.founded() as state:
        assert state.hand_over(SUCCESSOR, bytes(32), seal) == b"sealed"
    with life.open() as state:
        assert state.handed_over_to == SUCCESSOR
        with pytest.raises(StateError, match=f"handed over to the enclave {SUCCESSOR.hex()}"):
            state.start(evidence="sgx")
        with pytest.raises(LocalProtocolError, match="was handed over"):
            life.publish(state)


def test_the_same_successor_may_ask_again_and_no_other(life):
    state = life.founded()
    for _ in range(2):
        state.hand_over(SUCCESSOR, bytes(32), seal)
    for to, key in ((b"x" * 32, bytes(32)), (SUCCESSOR, b"x" * 32)):
        with pytest.raises(StateError, match="no other can have it"):
            state.hand_over(to, key, seal)
    assert len(files(state.folder / "ledger")) == 2


def test_a_hand_over_that_fails_has_not_happened(life):
    state = life.founded()

    def broken(estate):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        state.hand_over(SUCCESSOR, bytes(32), broken)
    assert state.handed_over_to is None
    state.start(evidence="sgx")


def test_nothing_leaves_before_the_end_is_written_down(life, monkeypatch):
    state = life.founded()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        state.hand_over(SUCCESSOR, bytes(32), seal)


def test_an_heir_goes_on_with_everything(life):
    old = life.founded("old")
    life.publish(old, 3)
    old.adopt(life.charter(2))
    life.publish(old)
    with life.open("new", life.sealer("heir")) as new:
        new.inherit(life.estate(old, SUCCESSOR), b"o" * 32)
    with life.open("new", life.sealer("heir")) as new:
        assert new.receipt_key == old.receipt_key
        assert new.published() == old.published()
        assert new.charters == old.charters
        assert new.handed_over_from == b"o" * 32
        assert new.handed_over_to is None
        assert np.array_equal(new.last_state.model, old.last_state.model)
        joins(life, new, old.head)
        life.publish(new)
        assert new.handed_over_from is None
    with life.open("new", life.sealer("heir")) as new:
        assert new.head.number == 5
        third = life.open("third", life.sealer("third"))
        third.inherit(life.estate(new, SUCCESSOR), b"h" * 32)
        assert third.published() == new.published()


def test_an_heir_has_nothing_of_its_own(life):
    old = life.founded("old")
    with pytest.raises(StateError, match="already"):
        life.founded("new").inherit(life.estate(old, SUCCESSOR), b"o" * 32)


def test_nothing_secret_prints(life):
    state = life.founded()
    estate = life.estate(state, SUCCESSOR)
    assert repr(state) == f"EnclaveState({str(state.folder)!r}, round 0, <secret>)"
    assert repr(estate) == "Estate()"
    assert estate.seed.hex() not in repr(vars(state))


def test_the_folder_is_made_for_its_owner(life):
    state = EnclaveState.open(life.root / "deep" / "er", life.sealer())
    assert state.folder.stat().st_mode & 0o777 == 0o700
