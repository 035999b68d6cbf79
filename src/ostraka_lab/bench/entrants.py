"""The contest of `ostraka bench peers`: the updates, and each peer in a process of its own.

python -m ostraka_lab.bench.entrants NAME CONTEST

    flower                    Flower's MultiKrum, on replies of nodes with whole weights
    byzfl-torch, byzfl-numpy  ByzFL's MultiKrum, on whole weights in one tensor or array
    blas-clear                a Gram matrix in the clear, on differences
    floor                     open every sealed update once and average k of them
    ostraka-...               Ostraka's Multi-Krum, by masking

Flower, ByzFL and torch are imported by the functions that use them: ByzFL runs in an environment of
its own, and what one peer loads must not count as another's memory. A small contest is played
first, so that nothing is loaded or set up on the clock.
"""

import io
import json
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from ostraka.arrays import AnyArray, Float32
from ostraka.core import gram, rules, uploads
from ostraka.core.rules import krum
from ostraka.errors import ConfigError, LeakyMasking, LocalProtocolError
from ostraka.protocol.host import lend_threads
from ostraka_lab.bench import kernels
from ostraka_lab.bench.machine import Stopwatch, forget_peak, measured, peak_bytes, resident_bytes
from ostraka_lab.bench.parties import (
    EXACT,
    GAUSSIAN,
    INSIDE,
    PAPER,
    SKETCH,
    SKETCH_INSIDE,
    Workload,
    byzantine,
    terms_of,
)
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.whole_round import CLIENTS, Played, play

Details: TypeAlias = dict[str, Any]

SCALE = 1e-4  # of an update, beside the weights
# What the whole federation does. The enclave's receiving, and what it prepares, are in cpu_s.
ALL_ROLES = ("clients_cpu_s", "unpacking_cpu_s", "cpu_s")

_WEIGHTS, _COMMON, _OWN, _CAST = range(4)  # what numbers are drawn for
_ROOM = 16  # columns a client, to find out afterwards which rows were averaged
_ENOUGH = 262_144  # columns of an aggregate that show which rows are in it
_COLUMNS = 16_384
_SMALL = 8192  # values in an update of the small contest
_MIB = 2**20
_WHAT = "model"  # the name of the array in Flower's records


@dataclass(frozen=True)
class Contest:
    """The updates that every peer gets: a function of the seed, made row by row.

    Weights are standard normals. An honest update is half a direction that all share and half its
    own (by energy), so that a robust rule can tell it from its opposite; its norm is a
    ten-thousandth of that of the weights. An attacker sends the opposite of its honest update.

    centred: the weights are zeros, so that all peers get differences.
    """

    clients: int
    dimension: int
    threads: int = 1
    seed: int = 0
    centred: bool = False

    def __post_init__(self) -> None:
        rules.require_enough(PAPER, self.clients, 1)
        if self.dimension < _ROOM * self.clients:
            raise ConfigError(
                f"updates need at least {_ROOM} values per client, {_ROOM * self.clients} here; "
                f"got dimension={self.dimension}"
            )
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1; got {self.threads}")

    @property
    def f(self) -> int:
        return max(1, byzantine(self.clients, PAPER))

    @property
    def k(self) -> int:
        return self.clients - self.f

    @cached_property
    def attackers(self) -> frozenset[int]:
        drawn = self._stream(_CAST).choice(self.clients, size=self.f, replace=False)
        return frozenset(drawn.tolist())

    @cached_property
    def weights(self) -> Float32:
        """The global model (d,), which is public."""
        return np.zeros(self.dimension, np.float32) if self.centred else self._normals(_WEIGHTS)

    def update(self, row: int) -> Float32:
        """One client's difference from the weights (d,)."""
        size = math.sqrt(0.5) * SCALE * (-1 if row in self.attackers else 1)
        both = self._common + self._normals(_OWN, row)
        both *= np.float32(size)
        return both

    def updates(self) -> Iterator[Float32]:
        return map(self.update, range(self.clients))

    def trained(self, row: int) -> Float32:
        """One client's whole weights after training (d,), as Flower's clients send them."""
        return self.weights + self.update(row)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @cached_property
    def _common(self) -> Float32:
        return self._normals(_COMMON)

    def _normals(self, *purpose: int) -> Float32:
        return self._stream(*purpose).standard_normal(self.dimension, dtype=np.float32)

    def _stream(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose])


@dataclass(frozen=True)
class Entrant:
    """What a peer brings to the contest, with its inputs in memory.

    run: gives the aggregate (d,); all that is timed, unless `details` times it better.
    from_weights: the aggregate is whole weights. details: figures of its own, after the run; at
    least `clients_cpu_s`, what all clients did to send their updates.
    """

    run: Callable[[], AnyArray]
    details: Callable[[], Details]
    from_weights: bool = False


class Post:
    """How updates get from the clients of a plain federation to its server, on two clocks.

    A client packs its update into bytes, and the server unpacks what arrives. Both are done row by
    row before the aggregation. No bytes cross a network, and nothing is encrypted.
    """

    def __init__(self) -> None:
        self._packing, self._unpacking = Stopwatch(), Stopwatch()

    def array(self, values: Float32) -> Float32:
        """Send one array (d,) in numpy's format, which is also that of Flower's arrays."""
        with self._packing:
            file = io.BytesIO()
            np.save(file, values, allow_pickle=False)
            sent = file.getvalue()
        with self._unpacking:
            arrived: Float32 = np.load(io.BytesIO(sent), allow_pickle=False)
        return arrived

    def reply(self, row: int, weights: Float32) -> Any:
        """Send one node's answer by Flower's own code: a real message with a record of weights.

        The node makes the objects of which a message consists and their digests. The SuperLink's
        store checks each digest, and the server's app puts the message together again.
        """
        from flwr.supercore.inflatable import inflatable_object as objects  # noqa: PLC0415
        from flwr.supercore.inflatable.inflatable_utils import (  # noqa: PLC0415
            inflate_object_from_contents,
        )
        from flwr.supercore.object_store.in_memory_object_store import (  # noqa: PLC0415
            InMemoryObjectStore,
        )

        with self._packing, objects.no_object_id_recompute():
            message = _reply(row, weights)
            tree = objects.get_object_tree(message)
            nested = objects.get_all_nested_objects(message)
            sent = {each: part.deflate() for each, part in nested.items()}
        with self._unpacking:
            store = InMemoryObjectStore()
            store.preregister(1, tree)
            for each, content in sent.items():
                store.put(each, content)
            found = {each: store.get(each) or b"" for each in sent}
            return inflate_object_from_contents(tree.object_id, found)

    def costs(self) -> Details:
        return {
            "clients_cpu_s": self._packing.seconds,
            "unpacking_cpu_s": self._unpacking.seconds,
        }


def averaged(contest: Contest, aggregate: AnyArray, *, from_weights: bool) -> list[int]:
    """Find the rows of which this (d,) is the mean, by least squares over some of its columns."""
    part = slice(0, min(contest.dimension, _ENOUGH))
    mean = np.asarray(aggregate[part], np.float64)
    if from_weights:
        mean = mean - contest.weights[part]
    rows = np.stack([update[part] for update in contest.updates()]).astype(np.float64)
    weights = np.linalg.solve(rows @ rows.T, rows @ mean)
    return np.flatnonzero(weights > 0.5 / contest.k).tolist()


def _enter_flower(contest: Contest) -> Entrant:
    """Flower's MultiKrum as a ServerApp calls it: `aggregate_train` on the replies of all nodes.

    `cpu_s` is `aggregate_train` alone: checking the replies, reading their arrays, distances,
    selection and the mean. Packing and unpacking the replies are figures beside it.
    """
    from flwr.serverapp.strategy import MultiKrum  # noqa: PLC0415
    from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415

    logging.getLogger("flwr").setLevel(logging.WARNING)
    # A SuperLink tells a ServerApp these. No message can be made without them.
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    strategy = MultiKrum(
        num_malicious_nodes=contest.f,
        num_nodes_to_select=contest.k,
        min_train_nodes=contest.clients,
        min_available_nodes=contest.clients,
    )
    post = Post()
    replies = [post.reply(row, contest.trained(row)) for row in range(contest.clients)]

    def run() -> AnyArray:
        arrays, _ = strategy.aggregate_train(1, replies)
        if arrays is None:
            raise LocalProtocolError("Flower aggregated nothing")
        return np.asarray(arrays[_WHAT].numpy())

    return Entrant(run, post.costs, from_weights=True)


def _reply(row: int, weights: Float32) -> Any:
    """What a node answers: a real message with one record of whole weights."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict  # noqa: PLC0415

    question = Message(RecordDict(), dst_node_id=row + 1, message_type="train")
    content = RecordDict(
        {
            "arrays": ArrayRecord({_WHAT: Array(weights)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, reply_to=question)


def _enter_byzfl(contest: Contest, *, torch: bool) -> Entrant:
    """ByzFL's MultiKrum. `cpu_s` is the aggregator's call alone, on one tensor or array.

    ByzFL has no messages, so that its clients send arrays.
    """
    from byzfl import MultiKrum  # noqa: PLC0415

    post = Post()
    vectors = _received(post, map(contest.trained, range(contest.clients)), contest)
    rule: Callable[[Any], Any] = MultiKrum(f=contest.f)
    if not torch:
        return Entrant(lambda: rule(vectors), post.costs, from_weights=True)

    import torch as tensors  # noqa: PLC0415

    tensors.set_num_threads(contest.threads)
    given = tensors.from_numpy(vectors)
    return Entrant(lambda: np.asarray(rule(given).numpy()), post.costs, from_weights=True)


def _received(post: Post, sent: Iterable[Float32], contest: Contest) -> Float32:
    """All arrays that clients send, in one (n, d)."""
    rows = np.empty((contest.clients, contest.dimension), np.float32)
    for row, values in enumerate(sent):
        rows[row] = post.array(values)
    return rows


def _enter_clear(contest: Contest) -> Entrant:
    """The strong baseline: differences in the clear, a float32 Gram matrix by BLAS, and a mean."""
    post = Post()
    rows = _received(post, contest.updates(), contest)
    return Entrant(lambda: multi_krum_in_the_clear(rows, contest.f, contest.k), post.costs)


def multi_krum_in_the_clear(rows: Float32, f: int, k: int) -> Float32:
    """The mean of the k selected (d,). rows: (n, d).

    A block's products are in float32 and the blocks are added in float64: on differences from the
    public model this is precise enough.
    """
    n, d = rows.shape
    products = np.zeros((n, n))
    for start in range(0, d, _COLUMNS):
        gram.add_gram32(products, rows[:, start : start + _COLUMNS])
    weights = np.zeros(n, np.float32)
    weights[list(krum.multi_krum(gram.from_gram(products), f, k))] = 1 / k
    return weights @ rows


def _enter_floor(contest: Contest) -> Entrant:
    """Open every sealed update once and average k of them: which k is given.

    No private scheme with an enclave can cost less.
    """
    load = Workload(contest.clients, contest.dimension, row_of=contest.update)
    return Entrant(
        lambda: kernels.floor(load, Stopwatch()), lambda: {"clients_cpu_s": load.sealing.seconds}
    )


def _enter_ostraka(contest: Contest, *, name: str, upload: str = uploads.DEFAULT) -> Entrant:
    """Ostraka: sealed updates in, model out, all roles in one process on clocks of their own.

    The whole round is played, and what enclave and workers do in it is reported as its CPU time.
    The part of it before the close, as updates arrive, is also a figure of its own: receiving. What
    the clients' sealing takes is a figure beside it. No bytes cross a network: `bench service` has
    what that costs.
    """
    terms = terms_of(
        name,
        contest.clients,
        contest.dimension,
        f=contest.f,
        composition=PAPER,
        upload=upload,
    )
    played: list[Played] = []

    def run() -> Float32:
        warnings.simplefilter("ignore", LeakyMasking)
        with lend_threads(contest.threads) as threads:
            outcome = play(terms, contest.updates(), clients=contest.clients, threads=threads)
        played.append(outcome)
        return outcome.aggregate

    return Entrant(run, lambda: _details(played[-1]))


def _details(played: Played) -> Details:
    return {
        "cpu_s": played.enclave_cpu_s + played.worker_cpu_s,
        "enclave_cpu_s": played.enclave_cpu_s,
        "worker_cpu_s": played.worker_cpu_s,
        "prepare_cpu_s": played.prepare_cpu_s,
        "receiving_cpu_s": played.arrival_cpu_s,
        "sealing_cpu_s": played.cpu_s[CLIENTS],
        "clients_cpu_s": played.cpu_s[CLIENTS],
        "uploaded_bytes": played.traffic.uploads,
        "wall_s": played.wall_s,
        "peak_rss_mib": played.peak_rss / _MIB,
        "inputs_rss_mib": played.inputs_rss / _MIB,
        "selected": list(played.selected),
    }


ENTRANTS: dict[str, Callable[[Contest], Entrant]] = {
    "flower": _enter_flower,
    "byzfl-torch": partial(_enter_byzfl, torch=True),
    "byzfl-numpy": partial(_enter_byzfl, torch=False),
    "blas-clear": _enter_clear,
    "floor": _enter_floor,
    "ostraka-gaussian": partial(_enter_ostraka, name=GAUSSIAN),
    "ostraka-exact": partial(_enter_ostraka, name=EXACT),
    "ostraka-exact-int8": partial(_enter_ostraka, name=EXACT, upload="int8"),
    "ostraka-int8-inside": partial(_enter_ostraka, name=INSIDE, upload="int8"),
    "ostraka-exact-sketch": partial(_enter_ostraka, name=SKETCH),
    "ostraka-sketch-inside": partial(_enter_ostraka, name=SKETCH_INSIDE),
}


def take_turn(name: str, contest: Contest, begin: Begin) -> Figures:
    """Run one peer once."""
    enter = ENTRANTS[name]
    small = max(_SMALL, _ROOM * contest.clients)
    enter(replace(contest, dimension=min(contest.dimension, small))).run()
    begin(name, 0, 1)
    entrant = enter(contest)
    forget_peak()
    before = resident_bytes()
    aggregate, cost = measured(entrant.run)
    figures: Figures = {
        "cpu_s": cost.cpu_s,
        "wall_s": cost.wall_s,
        "peak_rss_mib": peak_bytes() / _MIB,
        "inputs_rss_mib": before / _MIB,
    }
    figures |= entrant.details()
    figures["all_roles_cpu_s"] = sum(figures.get(part, 0.0) for part in ALL_ROLES)
    if "selected" not in figures:
        found = averaged(contest, aggregate, from_weights=entrant.from_weights)
        figures["selected"] = found
    return figures


if __name__ == "__main__":
    asked = Contest(**json.loads(sys.argv[2]))
    sys.exit(report(partial(take_turn, sys.argv[1], asked)))
