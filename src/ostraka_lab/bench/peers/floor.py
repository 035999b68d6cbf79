"""The floor: open every sealed update once and average k of them.

Which k is given: nothing is selected. No private scheme with an enclave can cost less.
"""

from pathlib import Path

from ostraka.arrays import Float32
from ostraka_lab.bench import kernels
from ostraka_lab.bench.clock import Stopwatch
from ostraka_lab.bench.peers.contest import Contest
from ostraka_lab.bench.peers.entrant import Entrant
from ostraka_lab.bench.workload import Workload


def enter(contest: Contest) -> Entrant:
    load = Workload(contest.clients, contest.dim, Path(), row_of=contest.update)

    def run() -> Float32:
        return kernels.floor(load, Stopwatch())

    return Entrant(run)
