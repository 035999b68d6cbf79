"""One size: `python -m ostraka_lab.bench.scale.cell CLIENTS DIM REPEAT`.

Whole rounds by the real roles on one thread. The enclave's memory is that of a process of its own,
which opens ciphertext from files as a host keeps it.
"""

import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from ostraka.config import Terms
from ostraka_lab.bench.enclave_memory import enclave_peak_bytes
from ostraka_lab.bench.parties import EXACT, SKETCH, sketch_size, terms_of
from ostraka_lab.bench.process import Begin, Figures, report
from ostraka_lab.bench.whole_round import OFFLINE, Played, play, repeated, warm_up

UNCHECKED = "exact-unchecked"
# A size that takes longer than this is not repeated: long runs are less noisy than short ones.
_LONG_S = 60.0


def variants(clients: int, dim: int) -> dict[str, Terms]:
    """The rounds to measure. A sketch needs long updates and not too many clients."""
    exact = terms_of(EXACT, clients, dim)
    rounds = {EXACT: exact, UNCHECKED: replace(exact, verify=False)}
    if sketch_size(clients, dim):
        rounds[SKETCH] = terms_of(SKETCH, clients, dim)
    return rounds


def measure(clients: int, dim: int, repeat: int, begin: Begin) -> Figures:
    rounds = variants(clients, dim)
    runs: dict[str, list[Figures]] = {name: [] for name in rounds}
    for terms in rounds.values():
        warm_up(terms, clients=clients)
    start = time.monotonic()
    for turn in range(repeat):
        for name, terms in rounds.items():
            begin(f"{name}, {clients} clients of {dim}", turn, repeat)
            runs[name].append(_run(play(terms, repeated(clients, dim), clients=clients)))
        if time.monotonic() - start > _LONG_S:
            break
    begin(f"memory, {clients} clients of {dim}", repeat, repeat)
    return {
        "clients": clients,
        "dim": dim,
        "columns": {name: terms.columns.length for name, terms in rounds.items()},
        "enclave_bytes": _memory(clients, dim),
        "runs": runs,
    }


def _run(played: Played) -> Figures:
    return {
        "enclave_cpu_s": played.enclave_cpu_s,
        "worker_cpu_s": played.worker_cpu_s,
        "offline_cpu_s": played.cpu_s[OFFLINE],
        "uploaded_bytes": played.traffic.uploads,
        "shared_bytes": played.traffic.shares + played.traffic.answers,
    }


def _memory(clients: int, dim: int) -> int:
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        return enclave_peak_bytes(clients, dim, masking="exact", directory=Path(directory))


if __name__ == "__main__":
    clients, dim, repeat = map(int, sys.argv[1:])
    sys.exit(report(partial(measure, clients, dim, repeat)))
