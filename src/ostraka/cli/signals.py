"""How a service of ours is told to stop."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

_STOP = (signal.SIGTERM, signal.SIGINT)
_NOTHING = 0


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C call `stop`. Gives the signals that have come.

    By a thread of its own: a handler interrupts the main thread anywhere, perhaps while that holds
    a lock that `stop` needs.
    """
    caught: list[int] = []
    reading, writing = os.pipe()

    def listen() -> None:
        while (number := os.read(reading, 1)[0]) != _NOTHING:
            caught.append(number)
            stop()

    def pass_on(number: int, _: object) -> None:
        os.write(writing, bytes([number]))

    listener = Thread(target=listen, name="signals", daemon=True)
    listener.start()
    old = {each: signal.signal(each, pass_on) for each in _STOP}
    try:
        yield caught
    finally:
        for each, handler in old.items():
            signal.signal(each, handler)
        os.write(writing, bytes([_NOTHING]))
        listener.join()
        os.close(reading)
        os.close(writing)
