"""Ostraka: sealed updates in, model out, all roles in one process and on clocks of their own.

`run` plays the whole round, but only its own part is reported: what is made offline and the
clients' sealing are figures beside it.
"""

import warnings
from functools import partial

from ostraka.arrays import Float32
from ostraka.errors import LeakyMasking
from ostraka.protocol.host import lanes
from ostraka_lab.bench.parties import EXACT, GAUSSIAN, SKETCH, SKETCH_INSIDE, terms_of
from ostraka_lab.bench.peers.contest import Contest
from ostraka_lab.bench.peers.entrant import Details, Entrant
from ostraka_lab.bench.whole_round import CLIENTS, OFFLINE, Played, play

_MIB = 2**20


def enter(contest: Contest, *, name: str) -> Entrant:
    terms = terms_of(name, contest.clients, contest.dim, f=contest.f)
    played: list[Played] = []

    def run() -> Float32:
        warnings.simplefilter("ignore", LeakyMasking)
        with lanes(contest.threads) as threads:
            outcome = play(terms, contest.updates(), clients=contest.clients, lanes=threads)
        played.append(outcome)
        return outcome.aggregate

    return Entrant(run, details=lambda: _details(played[-1]))


gaussian = partial(enter, name=GAUSSIAN)
exact = partial(enter, name=EXACT)
exact_sketch = partial(enter, name=SKETCH)
sketch_inside = partial(enter, name=SKETCH_INSIDE)


def _details(played: Played) -> Details:
    return {
        "cpu_s": played.enclave_cpu_s + played.worker_cpu_s,
        "enclave_cpu_s": played.enclave_cpu_s,
        "worker_cpu_s": played.worker_cpu_s,
        "offline_cpu_s": played.cpu_s[OFFLINE],
        "sealing_cpu_s": played.cpu_s[CLIENTS],
        "wall_s": played.wall_s,
        "peak_rss_mib": played.peak_rss / _MIB,
        "inputs_rss_mib": played.inputs_rss / _MIB,
        "selected": list(played.selected),
    }
