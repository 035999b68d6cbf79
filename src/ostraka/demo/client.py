"""What a client's process runs: a dozen lines around ostraka.Client.

python -m ostraka.demo.client SETTINGS FOLDER ADDRESS NUMBER
"""

import logging
import sys
import time
from pathlib import Path

import numpy as np

import ostraka
from ostraka.arrays import Float32
from ostraka.config import Manifest
from ostraka.demo import task
from ostraka.demo.records import Recorder, client_name, recorder
from ostraka.demo.settings import Demo
from ostraka.errors import OstrakaError, UpdateRejected
from ostraka.services import logs
from ostraka.services.client import api
from ostraka.services.client.packing import Update
from ostraka.services.client.results import Model

_LOG = logging.getLogger("ostraka.demo.client")
_AGAIN_S = 0.1  # whose update was rejected has to wait until the others' round is over


def main() -> int:
    settings, folder, address, number = sys.argv[1:]
    logs.setup(json=True, simulated=True)
    try:
        take_part(Demo.from_json(settings), Path(folder), address, int(number))
    except OstrakaError as error:
        _LOG.error(str(error))
        return 1
    return 0


def take_part(demo: Demo, root: Path, address: str, number: int) -> None:
    """Be client `number` in all rounds."""
    name = client_name(number)
    if number in task.attackers(demo):
        _drop_own_checks()
    books = Recorder(root, _LOG) if number == recorder(demo) else None
    with ostraka.Client(
        address,
        name=name,
        key=root / "keys" / f"{name}.key",
        policy=root / "policy.toml",
        unsafe_simulation=True,
        on_event=lambda event: logs.event(_LOG, event),
    ) as client:
        for current in range(1, demo.rounds + 1):
            model = _fetch(client, current)
            update = task.update(demo, number, current, model.vector)
            try:
                outcome = client.submit(update)
            except UpdateRejected as rejected:
                _LOG.warning(str(rejected))
                continue
            logs.event(_LOG, outcome)
            if books is not None and outcome.receipt is not None:
                books.model(current - 1, model.vector)
                books.receipt(outcome.receipt)
        if books is not None:
            books.model(demo.rounds, client.fetch().vector)


def _drop_own_checks() -> None:
    """What an attacker runs is its own to change: the library's checks do not hold it back."""

    def unchecked(update: Update, manifest: Manifest) -> Float32:
        return np.asarray(update, np.float32)

    vars(api)["flatten"] = unchecked


def _fetch(client: ostraka.Client, current: int) -> Model:
    while (model := client.fetch()).round < current:
        time.sleep(_AGAIN_S)
    logs.event(_LOG, model)
    return model


if __name__ == "__main__":
    sys.exit(main())
