"""Runs ByzFL on given rows. Its own environment's interpreter runs this: JOBS.json ROWS.npz OUT.npz

A job is {"rows": a name in ROWS, "chain": [[class, arguments], ...], "seed": for numpy}. The last
class of a chain may be a pre-aggregation. What a job raises is its outcome, as text.
"""

import json
import sys
from pathlib import Path
from typing import Any

import byzfl
import numpy as np


def run(job: dict[str, Any], rows: Any) -> Any:
    np.random.seed(job["seed"])  # noqa: NPY002 (ByzFL draws from it)
    value = np.array(rows)  # Clipping and ARC change what they are given.
    for name, arguments in job["chain"]:
        taken = {key: np.array(each) if key == "m" else each for key, each in arguments.items()}
        value = getattr(byzfl, name)(**taken)(value)
    return value


def main(jobs: Path, inputs: Path, outputs: Path) -> None:
    rows, found = np.load(inputs), {}
    for number, job in enumerate(json.loads(jobs.read_text())):
        try:
            found[str(number)] = run(job, rows[job["rows"]])
        except Exception as error:  # noqa: BLE001 (it is what the test asks for)
            found[str(number)] = np.array(f"{type(error).__name__}: {error}")
    np.savez(outputs, **found)


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:]))
