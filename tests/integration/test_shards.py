"""A lead and its shards as processes: whole rounds, and kill -9 of each of them at every step.

What comes out is what one enclave gives (`Stage.check`): every number is published once, with the
right updates in it, and every client has its model.
"""

import json
import random
import re
import shutil
from dataclasses import dataclass
from typing import Any

import pytest

SHARDS = 2
DIMENSION = 40_000  # three leaves of a model: the first shard has one, and the second two
TILE = 16_384

VICTIMS = ("lead", "shard-0", "shard-1")
STEPS = (
    "before upload",
    "during upload",
    "after upload",
    "during the matrices",
    "before publish",
    "after publish",
    "while it is away",
)
VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {"masking": "exact", "settings": {}},
    "sketch": {"masking": "exact", "settings": {"sketch": 4096}},
}


def plan_for(variant="exact", **settings):
    chosen = VARIANTS[variant]
    ours = {"tile": TILE, "quorum": 5} | chosen["settings"] | settings
    return {
        "shards": SHARDS,
        "clients": 5,
        "f": 1,
        "dimension": DIMENSION,
        "masking": chosen["masking"],
        "settings": ours,
    }


def start(play, *, clients=True, gates=None):
    play.start_enclave()
    play.start_shards()
    for number in (1, 2):
        play.start_worker(number, gates=gates if number == 1 else None)
    if clients:
        play.start_clients()


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_rounds_through_two_shards(stage, variant, logged):
    play = stage(rounds=2, **plan_for(variant))
    start(play)
    play.check()
    shown = play.status()
    assert shown["shards"] == [0, 1]
    for processes in play.shards.values():
        assert not logged(processes[-1], "LeadLost")


@dataclass(frozen=True)
class Case:
    """round: in which the victim is killed."""

    victim: str
    step: str
    variant: str
    round: int

    def __str__(self) -> str:
        return f"{self.victim}, {self.step}, {self.variant}, round {self.round}"


def every_case():
    for v, variant in enumerate(VARIANTS):
        for w, victim in enumerate(VICTIMS):
            for s, step in enumerate(STEPS):
                yield Case(victim, step, variant, 1 + (v + w + s) % 2)


ALL = tuple(every_case())
FEW = frozenset(random.Random(7).sample(ALL, 5))


def test_the_matrix_and_its_few_leave_no_victim_out():
    assert len(set(ALL)) == len(ALL) >= 40
    for cases in (ALL, FEW):
        assert {case.victim for case in cases} == set(VICTIMS)
        assert {case.variant for case in cases} == set(VARIANTS)


class Scene:
    """Brings everybody to the step, kills the victim there, and starts it again."""

    def __init__(self, stage, case):
        self.stage = stage
        self.case = case
        self.gate = stage.gate()

    def start(self):
        case, gates = self.case, {}
        if case.step in ("before upload", "during upload"):
            place = "half" if case.step == "during upload" else "fetched"
            self.stage.client("client-1").gates[place, case.round] = self.gate
        elif case.step == "after upload":
            self.stage.client("client-4").gates["fetched", case.round] = self.gate
        elif case.step == "during the matrices":
            gates = {self._block(): self.gate}
        start(self.stage, gates=gates)
        if case.step == "before publish":
            self._obstacle().mkdir(parents=True)

    def _block(self):
        """The first of the round. One kernel serves all streams of a worker, and so counts the
        blocks of all: three tiles at two shards, or the sketches at the lead."""
        return (self.case.round - 1) * (1 if self.case.variant == "sketch" else 3) + 1

    def _obstacle(self):
        """A directory that is in the way of the lead's model of the round."""
        return self.stage.state / f"model-{self.case.round:08d}.sealed"

    def wait_for_step(self):
        stage, case = self.stage, self.case
        stage.wait_for("RoundOpened", number=case.round)
        if case.step not in ("before publish", "after publish", "while it is away"):
            self.gate.wait_until_reached()
        elif case.step == "before publish":
            stage.wait_for("StorageFailed")
        elif case.step == "after publish":
            stage.wait_for("RoundPublished", number=case.round)

    def kill(self):
        stage, victim = self.stage, self.case.victim
        if victim == "lead":
            stage.enclave.kill()
        else:
            stage.shards[int(victim[-1])][-1].kill()
        if self._obstacle().is_dir():
            self._obstacle().rmdir()
        if self.case.step == "while it is away" and victim != "lead":
            stage.wait_for("ShardLeft")
        if victim == "lead":
            stage.start_enclave()
        else:
            stage.start_shard(int(victim[-1]), wait=False)
        self.gate.open()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case in FEW else pytest.mark.soak)
        for case in ALL
    ],
    ids=str,
)
def test_a_kill(stage, case):
    play = stage(rounds=2, **plan_for(case.variant))
    scene = Scene(play, case)
    scene.start()
    scene.wait_for_step()
    scene.kill()
    chain = play.check()
    assert {receipt.participants for receipt in chain} == {len(play.names)}
    for process in (*play.enclaves, *(each for some in play.shards.values() for each in some)):
        assert not [line for line in process.lines if _is_unforeseen(line)]


def _is_unforeseen(line):
    """An error of ours with a trace; gRPC has words of its own for a peer that dies."""
    said = json.loads(line) if line.startswith("{") else {}
    return "trace" in said and said["logger"].startswith("ostraka")


@pytest.mark.slow
def test_a_shard_of_another_measurement_is_refused_and_the_round_waits(stage):
    play = stage(rounds=1, **plan_for())
    play.start_enclave()
    play.start_shard(0)
    folder = play.deployment.shard_folder(1)
    other = play.deployment.spawn(
        "shard-1",
        "-c",
        OTHER_CODE,
        *("shard", "--lead", play.deployment.address, "--number", "1"),
        *("--config", str(folder / "federation.toml"), "--unsafe-simulation", "--log-json"),
    )
    refused = play.wait_for("ShardRefused")
    assert "mrenclave" in refused["why"] or "same code" in refused["why"]
    other.kill()
    assert not play.told("RoundOpened")
    play.start_shard(1)
    for number in (1, 2):
        play.start_worker(number)
    play.start_clients()
    play.check()


# The shard's program, as if one of its measured files were another.
OTHER_CODE = """
import dataclasses
import sys
from ostraka.enclave import measurement
true = measurement.measure
measurement.measure = lambda: dataclasses.replace(true(), code=bytes(32))
from ostraka.enclave.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_shards_move_between_machines_if_their_slices_do(stage):
    """Any shard opens any slice, by the key that the lead gives it."""
    play = stage(rounds=2, **plan_for())
    play.client("client-1").gates["fetched", 2] = held = play.gate()
    start(play)
    play.wait_for("RoundOpened", number=2)
    held.wait_until_reached()
    play.enclave.stop()
    for processes in play.shards.values():
        processes[-1].stop()
    folders = [play.deployment.shard_folder(number) / "state" for number in range(SHARDS)]
    (first,), (second,) = (list(folder.glob("slice-00000001-*.sealed")) for folder in folders)
    first.rename(folders[1] / first.name)
    play.start_enclave()
    play.start_shard(0, wait=False)
    refused = play.wait_for("ShardRefused")
    assert first.name in refused["why"]
    assert "is missing" in refused["why"]
    second.rename(folders[0] / second.name)
    (folders[1] / first.name).rename(first)
    play.start_shard(1, wait=False)
    (folders[0] / second.name).rename(second)
    held.open()
    play.check()


@pytest.mark.slow
def test_the_number_of_shards_is_changed_between_rounds(stage):
    """The running shards stay as they are. A new one is told which slice it lacks."""
    play = stage(rounds=2, **plan_for())
    play.client("client-1").gates["fetched", 2] = held = play.gate()
    start(play)
    play.wait_for("RoundOpened", number=2)
    held.wait_until_reached()
    play.enclave.stop()
    play.deployment.add_shard()
    play.deployment.set(shards=SHARDS + 1)
    play.start_enclave()
    play.start_shard(SHARDS, wait=False)
    refused = play.wait_for("ShardRefused")
    folders = [play.deployment.shard_folder(number) / "state" for number in (1, 2)]
    (needed,) = folders[0].glob("slice-00000001-*.sealed")
    assert needed.name in refused["why"]
    shutil.copy(needed, folders[1])
    held.open()
    play.check()
    assert play.status()["shards"] == [0, 1, 2]


@pytest.mark.slow
def test_a_shard_that_a_new_policy_does_not_take_is_in_no_round_after_it(stage):
    """A connection that an older policy let in would else outlive it."""
    play = stage(rounds=1, **plan_for(deadline_s=1.0, extensions=0))
    play.start_enclave()
    play.start_shards()
    play.wait_for("RoundOpened", number=1)
    policy = play.deployment.root / "shards.toml"
    before = policy.read_text()
    stricter = re.sub(r'(?<=mrenclave = \[")[0-9a-f]+', "0" * 64, before)
    assert stricter != before
    policy.write_text(stricter)
    play.deployment.set(revision=2)
    adopted = play.enclave.wait_for(re.compile('"revision": 2,.*FederationAdopted').search)
    after = play.enclave.wait_for(re.compile('"(RoundOpened|ShardRefused)"').search, after=adopted)
    refused = json.loads(play.enclave.lines[after - 1])
    assert refused["event"] == "ShardRefused"
    assert "does not list this code" in refused["why"]
    play.enclave.wait_for("ShardsAwaited", after=adopted)
    assert not any("RoundOpened" in line for line in play.enclave.lines[adopted:])


@pytest.mark.slow
def test_shards_join_again_if_a_revision_moves_their_ranges(stage):
    play = stage(rounds=1, **plan_for(deadline_s=1.0, extensions=0))
    play.start_enclave()
    play.start_shards()
    play.wait_for("RoundOpened", number=1)
    play.deployment.set(revision=2, tile=2 * TILE, deadline_s=600.0)
    play.wait_for("FederationAdopted", revision=2)
    for number in (1, 2):
        play.start_worker(number)
    play.start_clients()
    play.check()
    for number in range(SHARDS):
        assert len(play.told("ShardJoined", shard=number)) == 2


@pytest.mark.slow
def test_a_revision_that_leaves_shards_nothing_is_not_adopted(stage):
    play = stage(rounds=1, **plan_for(deadline_s=1.0, extensions=0))
    play.start_enclave()
    play.start_shards()
    play.wait_for("RoundOpened", number=1)
    play.deployment.set(revision=2, tile=4 * TILE)
    ignored = play.wait_for("FederationIgnored")
    assert "cannot be cut for 2 shards" in ignored["why"]
    play.deployment.set(revision=3, tile=TILE)
    play.wait_for("FederationAdopted", revision=3)
