"""Figure 3 for one network: `python -m ostraka_lab.bench.paper.epoch CLIENTS DIM MASKING REPEAT`.

One whole round by the real roles on one thread, cut into the parts that the paper shows. MASKING is
gaussian, exact or sketch.
"""

import statistics
import sys
import warnings
from functools import partial

from ostraka.errors import LeakyMasking
from ostraka_lab.bench.parties import terms_of
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.results import spread
from ostraka_lab.bench.whole_round import Played, play, repeated, warm_up

_PARTS = ("offline", "collect", "open", "encode", "encrypt", "decode", "aggregate")


def measure(clients: int, dim: int, masking: str, repeat: int, begin: Begin) -> Figures:
    """Seconds by part, medians; `distances` are those of one worker, as workers run side by side.

    Bytes are those of all clients and of all workers.
    """
    warnings.simplefilter("ignore", LeakyMasking)
    terms = terms_of(masking, clients, dim)
    warm_up(terms, clients=clients)
    runs = []
    for turn in range(repeat):
        begin(f"{masking}, {clients} clients of {dim}", turn, repeat)
        runs.append(play(terms, repeated(clients, dim), clients=clients, parts=True))
    return {
        "parts": {name: statistics.median(_part(run, name) for run in runs) for name in _PARTS}
        | {"distances": statistics.median(run.slowest_worker_s for run in runs)},
        "enclave_cpu_s": statistics.median(run.enclave_cpu_s for run in runs),
        "spread": spread([run.enclave_cpu_s for run in runs]),
        "uploaded_bytes": runs[0].traffic.uploads,
        "shared_bytes": runs[0].traffic.shares + runs[0].traffic.answers,
        "sketch": terms.sketch,
    }


def _part(run: Played, name: str) -> float:
    return run.cpu_s.get(name, 0.0)


if __name__ == "__main__":
    clients, dim, repeat = (int(sys.argv[place]) for place in (1, 2, 4))
    sys.exit(report(partial(measure, clients, dim, sys.argv[3], repeat)))
