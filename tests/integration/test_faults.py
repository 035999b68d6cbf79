"""kill -9 of every party at every step of a round, and what is true afterwards all the same.

The victim is a process of its own. Whoever the step depends on stands still until it is dead, so
that the step is hit and not guessed.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

ENCLAVE, CLIENT = "enclave", "client-1"
VICTIMS = (ENCLAVE, "worker-1", "worker-2", CLIENT)
STEPS = (
    "before upload",
    "during upload",
    "after upload",
    "during masking",
    "during the matrices",
    "before publish",
    "after publish",
)
ROUNDS = 2
GRACE_S = 4  # where a client is waited for in vain, once all others have arrived

# terms: lines of the federation file. workers: that are enrolled.
VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {"masking": "exact", "workers": 2, "terms": {}},
    "gaussian": {"masking": "gaussian", "workers": 2, "terms": {}},
    "three workers": {"masking": "exact", "workers": 3, "terms": {"workers": 3}},
    "a spare": {"masking": "exact", "workers": 3, "terms": {"workers": 2}},
    "sketch": {"masking": "exact", "workers": 2, "terms": {"sketch": 4096}},
}

# A client that stands still where it is told to: "fetched 1", or "half 2" of its upload.
CLIENT_PROCESS = """
import sys, time
import numpy as np
import ostraka
from ostraka.client import upload as uploading

address, name, root, place = sys.argv[1:]
updates = np.load(f"{root}/{name}.npy")
at_once = uploading.frames

def say(*what):
    line = " ".join(map(str, what))
    print(line, flush=True)
    if line == place:
        time.sleep(600)

def half_way(sealed, numbers):
    for number, frame in zip(numbers, at_once(sealed, numbers)):
        if number == sealed.count // 2:
            say("half", model.round)
        yield frame

uploading.frames = half_way
with ostraka.Client(
    address, name=name, key=f"{root}/keys/{name}.key", policy=f"{root}/policy.toml",
    unsafe_simulation=True, timeout=300,
) as client:
    while (model := client.fetch()).round <= len(updates):
        say("fetched", model.round)
        outcome = client.submit(updates[model.round - 1])
        say("done", outcome.round, outcome.accepted, outcome.reason)
    say("final", model.digest.hex())
"""

# A worker that stands still before one of the tiles that it is given, counted from 1.
WORKER_PROCESS = """
import sys, time
from pathlib import Path
from ostraka.core.gram import NumpyKernel
from ostraka.files import read_identity
from ostraka.worker import EnclavePin, Staff, Verifier, WorkerService

address, name, key, tile = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])

class Held(NumpyKernel):
    tiles = 0

    def begin(self, rows, values):
        self.running = super().begin(rows, values)
        self.total = self.running.total
        return self

    def add(self, block):
        self.count()
        self.running.add(block)

    def count(self):
        self.tiles += 1
        if self.tiles == tile:
            print("held", flush=True)
            time.sleep(600)

policy = Verifier.of(key.parent.parent / "policy.toml", unsafe_simulation=True)
pin = EnclavePin.chosen(key, receipt_key=None, verifier=policy)
WorkerService(address, Staff(name, read_identity(key), Held(), pin)).run()
"""


@dataclass(frozen=True)
class Case:
    """round: in which the victim is killed. returns: whether it is started again."""

    victim: str
    step: str
    variant: str
    round: int
    returns: bool

    def __str__(self) -> str:
        end = "returns" if self.returns else "stays away"
        return f"{self.victim}, {self.step}, {self.variant}, round {self.round}, {end}"

    @property
    def holder(self) -> str:
        """Who stands still, so that the step lasts."""
        match self.step:
            case "before upload" | "during upload":
                return CLIENT
            case "after upload":
                return "client-4"
            case "during masking" | "during the matrices":
                return self.victim if self.victim in ("worker-1", "worker-2") else "worker-1"
        return "nobody"

    @property
    def in_vain(self) -> bool:
        """Whether a client is waited for that does not come."""
        return self.victim == CLIENT and not self.returns

    @property
    def place(self) -> str:
        """Where a client stands still."""
        return f"{'half' if self.step == 'during upload' else 'fetched'} {self.round}"


def every_case():
    """Every victim at every step of every variant; rounds and returns take turns."""
    for v, variant in enumerate(VARIANTS):
        for w, victim in enumerate(VICTIMS):
            for s, step in enumerate(STEPS):
                stays_away = victim != ENCLAVE and (v + w + s) % 3 == 0
                yield Case(victim, step, variant, 1 + (v + w + s) % 2, not stays_away)


ALL = tuple(every_case())
DOZEN = frozenset(random.Random(19749).sample(ALL, 12))


def test_the_matrix_and_its_dozen_leave_nothing_out():
    assert len(set(ALL)) == len(ALL) >= 60
    for cases in (ALL, DOZEN):
        assert {case.victim for case in cases} == set(VICTIMS)
        assert {case.step for case in cases} == set(STEPS)
        assert {case.variant for case in cases} == set(VARIANTS)
        assert {case.round for case in cases} == {1, 2}
        assert {case.returns for case in cases} == {True, False}


class Scene:
    """Brings everybody to the step, kills the victim there, and lets the others go on."""

    def __init__(self, stage, case):
        self.stage = stage
        self.case = case
        self.gate = stage.gate()
        self.process: Any = None  # the victim, unless it is the enclave
        self.returned = None
        # A directory of this name is in the way of the round's model.
        self.obstacle = stage.state / f"model-{case.round:08d}.sealed"

    def start(self):
        stage, case = self.stage, self.case
        stage.start_enclave()
        if case.step == "before publish":
            self.obstacle.mkdir()
        for number in range(1, stage.deployment.plan.workers + 1):
            self._start_worker(number)
            stage.wait_for("WorkerJoined", worker=f"worker-{number}")
        self._start_clients()

    def _start_clients(self):
        stage, case = self.stage, self.case
        if case.victim == CLIENT:
            self.process = self._client(case.place if case.holder == CLIENT else "")
            self.process.wait_for("fetched 1")  # A process starts more slowly than threads do.
        if case.holder in stage.names and case.holder != case.victim:
            place, number = case.place.split()
            stage.client(case.holder).gates[place, int(number)] = self.gate
        stage.start_clients(but=case.victim)

    def _start_worker(self, number):
        name, deployment = f"worker-{number}", self.stage.deployment
        tile = self._tile() if name == self.case.holder else 0
        if name != self.case.victim:
            self.stage.start_worker(number, gates={tile: self.gate})
        elif tile:
            arguments = (deployment.address, name, str(deployment.key(name)), str(tile))
            self.process = deployment.spawn(name, "-c", WORKER_PROCESS, *arguments)
        else:
            self.process = deployment.worker(number)

    def _tile(self):
        tiles = self.stage.tiles
        before = (self.case.round - 1) * tiles
        return before + (1 if self.case.step == "during masking" else tiles)

    def _client(self, place):
        deployment = self.stage.deployment
        np.save(deployment.root / f"{CLIENT}.npy", self.stage.updates[:, 0])
        arguments = (deployment.address, CLIENT, str(deployment.root), place)
        return deployment.spawn(CLIENT, "-c", CLIENT_PROCESS, *arguments)

    def wait_for_step(self):
        stage, case = self.stage, self.case
        stage.wait_for("RoundOpened", number=case.round)
        if case.holder == case.victim == CLIENT:
            self.process.wait_for(case.place)
        elif case.holder == case.victim:
            self.process.wait_for("held")
        elif case.holder != "nobody":
            self.gate.wait_until_reached()
        if case.step == "during masking" and case.round == 2:
            stage.enclave.wait_until_idle()  # It can send no more: the worker takes no share.
        elif case.step == "after upload":
            self._wait_for_uploads()
        elif case.step == "before publish":
            stage.wait_for("StorageFailed")
        elif case.step == "after publish":
            stage.wait_for("RoundPublished", number=case.round)

    def _wait_for_uploads(self):
        """Of all but the one that is held; round after round, because events do not name theirs."""
        for name in self.stage.names:
            place = 0
            for _ in range(self.case.round if name != self.case.holder else 0):
                place = self.stage.enclave.wait_for(partial(_is_upload_of, name), after=place)

    def kill(self):
        (self.process or self.stage.enclave).kill()
        if self.obstacle.is_dir():
            self.obstacle.rmdir()
        if self.case.victim.startswith("worker") and self.case.holder.startswith("client"):
            # Whether it is noticed before the enclave asks it for work is not what is tested.
            self.stage.wait_for("WorkerLeft", worker=self.case.victim)
        if self.case.returns:
            self._start_again()
        self.gate.open()

    def _start_again(self):
        if self.case.victim == ENCLAVE:
            self.stage.start_enclave()
        elif self.case.victim == CLIENT:
            self.returned = self._client("")
        else:
            self.stage.deployment.worker(int(self.case.victim[-1]))


def _is_upload_of(client, line):
    said = json.loads(line) if line.startswith("{") else {}
    return (said.get("event"), said.get("client")) == ("UploadCompleted", client)


def _is_unforeseen(line):
    """An error of ours with a trace; gRPC has words of its own for a peer that dies."""
    said = json.loads(line) if line.startswith("{") else {}
    return "trace" in said and said["logger"].startswith("ostraka")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case in DOZEN else pytest.mark.soak)
        for case in ALL
    ],
    ids=str,
)
def test_a_kill(stage, case):
    play = stage(rounds=ROUNDS, **plan_for(case))
    scene = Scene(play, case)
    scene.start()
    scene.wait_for_step()
    scene.kill()
    chain = play.check(rejected=_left_out(case))
    if not case.in_vain:
        assert {receipt.participants for receipt in chain} == {len(play.names)}
    if scene.returned is not None:
        scene.returned.wait_for(f"final {chain[-1].model.hex()}")
    _check_what_was_told(play, case)


def plan_for(case):
    variant = dict(VARIANTS[case.variant])
    settings = variant.pop("terms")
    if case.in_vain:
        settings = settings | {"grace_s": GRACE_S}
    if case.step == "during masking":
        # More than fits between two processes, so that shares are held up when a worker is.
        large = {"tile": 16384} | ({"sketch": 262_144} if "sketch" in settings else {})
        return variant | {"dimension": 400_000, "settings": settings | large}
    return variant | {"settings": settings}


def _left_out(case):
    """Whose update takes no part though it was begun, by round."""
    if case.in_vain and case.step == "during upload":
        return {case.round: {CLIENT: "incomplete when the round closed"}}
    return {}


def _check_what_was_told(play, case):
    opened = Counter(event["number"] for event in play.told("RoundOpened"))
    again = case.victim == ENCLAVE and case.step != "after publish"
    assert opened[case.round] == (2 if again else 1)
    assert not play.told("RoundSkipped")
    attempts = [event["workers"] for event in play.told("AttemptStarted")]
    if case.victim.startswith("worker") and case.holder == case.victim:
        (failed,) = play.told("WorkerFailed")
        assert failed["worker"] == case.victim
        left = [f"worker-{i}" for i in range(1, 4) if f"worker-{i}" != case.victim]
        assert attempts[case.round] == (left if case.variant == "a spare" else [])
    else:
        assert not play.told("WorkerFailed")
    for enclave in play.enclaves:
        assert not [line for line in enclave.lines if _is_unforeseen(line)]
