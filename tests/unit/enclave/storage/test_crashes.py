"""The process dies, or the power goes, at every single step that reaches the disk.

Two disks are left behind by each death. After `kill -9` all of what was written is there; after a
loss of power only what was synced, file by file and name by name. Whichever it is, what opens again
is the state before or the state after; and after whatever had returned, it is the state after.
"""

import errno
import importlib.util
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ostraka.encoding import digest, encode

pytestmark = pytest.mark.slow  # in make test, not in make check

SUCCESSOR = b"s" * 32
_STEPS_OF_A_FILE = 6  # open, write, sync, name; and open and sync the folder


class Died(BaseException):
    """Not an Exception, as nothing may catch it and go on."""


class File:
    def __init__(self, content=b""):
        self.content = self.durable = content


class Disk:
    """Counts the steps that change a disk, and knows what of it would survive a loss of power."""

    STEPS = ("open", "write", "fsync", "replace", "unlink", "mkdir")

    def __init__(self, root: Path, monkeypatch, *, dies_at=None, fails_at=None):
        self.root = root
        self.steps = 0
        self.dies_at, self.fails_at = dies_at, fails_at
        self.dead = False
        self.opened: dict[int, Any] = {}
        files = [path for path in root.rglob("*") if path.is_file()] if root.exists() else []
        self.names = {path: File(path.read_bytes()) for path in files}
        self.folders = {root, *(path for path in root.rglob("*") if path.is_dir())}
        self.durable_names = dict(self.names)
        self.durable_folders = set(self.folders)
        for step in self.STEPS:
            real = getattr(os, step)
            monkeypatch.setattr(os, step, self._patched(getattr(self, step), real))

    def _patched(self, ours, real):
        def call(*arguments, **options):
            if self.dead or self.steps == self.dies_at:
                self._die(real, arguments)
            self.steps += 1
            if self.steps - 1 == self.fails_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return ours(real, *arguments, **options)

        return call

    def _die(self, real, arguments):
        if not self.dead and real.__name__ == "write":
            file, data = arguments
            self.write(real, file, bytes(data)[: len(data) // 2])  # As far as it came.
        self.dead = True
        raise Died

    def open(self, real, path, flags, mode=0o777, **options):
        opened = real(path, flags, mode, **options)
        path = Path(path)
        if flags & os.O_DIRECTORY:
            self.opened[opened] = path
        else:
            self.opened[opened] = self.names.setdefault(path, File())
        return opened

    def write(self, real, opened, data):
        done = real(opened, data)
        self.opened[opened].content += bytes(data[:done])
        return done

    def fsync(self, real, opened):
        real(opened)
        what = self.opened[opened]
        if isinstance(what, File):
            what.durable = what.content
            return
        elsewhere = {p: file for p, file in self.durable_names.items() if p.parent != what}
        here = {path: file for path, file in self.names.items() if path.parent == what}
        self.durable_names = elsewhere | here
        self.durable_folders |= {path for path in self.folders if path.parent == what}

    def replace(self, real, source, target, **options):
        real(source, target, **options)
        self.names[Path(target)] = self.names.pop(Path(source))

    def unlink(self, real, path, **options):
        real(path, **options)
        self.names.pop(Path(path), None)

    def mkdir(self, real, path, *arguments, **options):
        real(path, *arguments, **options)
        self.folders.add(Path(path))

    def after_power_loss(self, target: Path) -> None:
        target.mkdir()
        for folder in sorted(self.durable_folders - {self.root}):
            (target / folder.relative_to(self.root)).mkdir(parents=True, exist_ok=True)
        for path, file in self.durable_names.items():
            if path.parent in self.durable_folders:
                (target / path.relative_to(self.root)).write_bytes(file.durable)


def found(life, state):
    state.found(life.charter(), life.state_of(0))


def found_after_abandon(life, state):
    state.found(life.charter(), life.state_of(3), abandon=life.abandon(life.charter()))


def hold(life, state):
    life.hold(state)


def release(life, state):
    """What is pending, which is the same outcome after every death."""
    life.release(state)


def adopt(life, state):
    state.adopt(life.charter(2))


def skip(life, state):
    state.skip(len(state.published()) + 1, "the quorum was missed")


def hand_over(life, state):
    state.hand_over(SUCCESSOR, bytes(32), lambda estate: b"")


def inherit(life, state):
    with life.open("old") as old:
        state.inherit(life.estate(old, SUCCESSOR), b"o" * 32)


def nothing(life, folder):
    pass


def two_rounds(life, folder):
    with life.founded(folder, keep=1) as state:
        life.publish(state, 2)


def a_pending_round(life, folder):
    two_rounds(life, folder)
    with life.open(folder, keep=1) as state:
        life.hold(state)


def a_request(life, folder):
    with life.founded("old") as old:
        life.publish(old, 2)
        hand_over(life, old)
    with life.open(folder) as state:
        state.migration.write(b"pending")


def went_on(life, state):
    """One more round can be published, and is there afterwards."""
    if state.fresh:
        if state.migration.exists():
            inherit(life, state)
        else:
            found(life, state)
    if state.pending is not None:
        life.release(state)
    if state.handed_over_to is None:
        life.publish(state)


ACTIONS = {
    "founding": (nothing, found),
    "founding after an abandoned round": (nothing, found_after_abandon),
    "holding an outcome": (two_rounds, hold),
    "publishing an outcome": (a_pending_round, release),
    "adopting a revision": (two_rounds, adopt),
    "skipping a round": (two_rounds, skip),
    "handing over": (two_rounds, hand_over),
    "taking over": (a_request, inherit),
}


def summary(state):
    head = state.head
    return (
        state.fresh,
        None if state.fresh else state.last_state.model.tobytes(),
        None if state.fresh else state.last_state.moments[0].tobytes(),
        head and digest(head),
        len(state.charters),
        state.handed_over_to,
        state.handed_over_from,
        state.pending and (encode(state.pending[0]), state.pending[1].model.tobytes()),
    )


def opened(life, folder):
    with life.open(folder, keep=1) as state:
        return summary(state)


def outcomes(life, act):
    """The state before, and the state after, of an undisturbed run."""
    with life.open("before", keep=1) as state:
        before = summary(state)
        act(life, state)
        return before, summary(state)


def run(life, folder, act):
    """True if the action returned."""
    state = None
    try:
        state = life.open(folder, keep=1)
        act(life, state)
    except Died:
        return False
    finally:
        if state is not None:
            state.close()
    return True


@pytest.fixture(params=ACTIONS)
def action(request, life):
    prepare, act = ACTIONS[request.param]
    (life.root / "before").mkdir()
    prepare(life, "before")
    shutil.copytree(life.root / "before", life.root / "base")
    return act


def test_a_death_at_any_step_leaves_the_state_before_or_after(life, action, monkeypatch):
    before, after = outcomes(life, action)
    seen = set()
    for step in itertools.count():
        folder, lost = f"killed-{step}", f"lost-{step}"
        shutil.copytree(life.root / "base", life.root / folder)
        with monkeypatch.context() as patched:
            disk = Disk(life.root / folder, patched, dies_at=step)
            returned = run(life, folder, action)
        disk.after_power_loss(life.root / lost)
        for left in (folder, lost):
            result = opened(life, left)
            assert result in (before, after), f"step {step}"
            assert result == after or not returned, f"step {step}"
            seen.add(result)
            with life.open(left, keep=1) as state:
                went_on(life, state)
                reached = summary(state)
            assert opened(life, left) == reached
        if returned:
            break
    assert seen == {before, after}
    assert step >= _STEPS_OF_A_FILE


def test_a_failing_disk_at_any_step_does_no_harm(life, action, monkeypatch):
    before, after = outcomes(life, action)
    for step in itertools.count():
        folder = f"failed-{step}"
        shutil.copytree(life.root / "base", life.root / folder)
        state = life.open(folder, keep=1)
        with monkeypatch.context() as patched:
            disk = Disk(life.root / folder, patched, fails_at=step)
            try:
                action(life, state)
                failed = False
            except OSError:
                failed = True
        assert summary(state) == (before if failed else after)
        if failed:
            action(life, state)  # The disk has room again.
        assert summary(state) == after
        state.close()
        assert opened(life, folder) == after
        if disk.steps <= step:
            break
    assert step >= _STEPS_OF_A_FILE


LOOP = """
import importlib.util, os, sys
from ostraka.encoding import digest
from pathlib import Path
from typing import Any
spec = importlib.util.spec_from_file_location("life", sys.argv[1])
life = importlib.util.module_from_spec(spec)
sys.modules["life"] = life
spec.loader.exec_module(life)
life = life.Life(Path(sys.argv[2]))
state = life.open()
if state.fresh:
    state.found(life.charter(), life.state_of(0))
if state.pending is not None:
    life.release(state)
while True:
    pending = life.hold(state, commitment=os.urandom(32))
    print("held", pending.receipt.number, digest(pending).hex(), flush=True)
    life.release(state)
    print("published", pending.receipt.number, digest(pending).hex(), flush=True)
"""


def test_kill_9_of_a_real_process(life):
    """Each outcome has a commitment of its own: what was held is published, and no other."""
    conftest = Path(__file__).with_name("conftest.py")
    assert importlib.util.spec_from_file_location("life", conftest) is not None
    chance = random.Random(5)
    last = 0
    for _ in range(4):
        told: list[str] = []
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, str(conftest), str(life.root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            told += itertools.islice(process.stdout, chance.randrange(5, 40))
            process.send_signal(signal.SIGKILL)
            told += [line for line in process.stdout if line.endswith("\n")]
        held = {int(line.split()[1]): line.split()[2] for line in told}
        with life.open() as state:
            published = max([last, *(int(line.split()[1]) for line in told if line[0] == "p")])
            assert state.head.number in (published, published + 1)
            expected = life.state_of(state.head.number).model
            assert (state.last_state.model == expected).all()
            if state.head.number < max(held):
                assert digest(state.pending[0]).hex() == held[state.head.number + 1]
            for each in state.published(min(held)):
                proposal = each.certificate.proposal
                pending = life.pending(state, each.receipt)
                assert pending.proposal == proposal
                assert digest(pending).hex() == held[each.receipt.number]
            last = state.head.number
