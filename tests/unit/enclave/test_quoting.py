"""Evidence is made for one after the other, and it is known how long that will take."""

import asyncio
import time

from ostraka.attestation.claims import KeyBinding
from ostraka.enclave.reception import Quoting
from ostraka.messages import SIMULATION, Evidence

SLOW_S = 0.05
ABOUT = KeyBinding(b"n" * 32, b"k" * 32, b"f" * 32)


class Slow:
    kind = SIMULATION

    def evidence(self, report_data: bytes) -> Evidence:
        time.sleep(SLOW_S)
        return Evidence(SIMULATION, report_data, ())


def test_how_long_a_line_takes_is_known_by_its_last_answer():
    async def ask() -> None:
        quoting = Quoting(Slow())
        assert quoting.wait_s == 0
        await quoting.evidence(ABOUT, stranger=False)
        alone = quoting.wait_s
        assert alone >= SLOW_S
        asking = [asyncio.create_task(quoting.evidence(ABOUT, stranger=False)) for _ in range(3)]
        await asyncio.sleep(0)
        assert quoting.wait_s == 4 * alone
        await asyncio.gather(*asking)
        assert quoting._asking == 0

    asyncio.run(ask())
