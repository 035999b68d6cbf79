"""Download lanes: the present model, or a slice of it, to whoever shows a ticket for it.

    peer                          door                        thread of the lane
     ----- LANE, ticket ---------> for the present model?
                                   a turn, if there is one free
     ----- TLS handshake, if there is TLS ------------------->
     <---- the values, and nothing else ----------------------
     ----- end ---------------------------------------------->

The model is no secret, and nothing of it is copied. A ticket of an older model opens nothing. What
a peer gets it checks by the digest that it has asked for, so bytes are not sealed here.

Strangers share one ticket, and turns of their own. A party that asks on its own connection is given
a ticket for one lane, because tickets travel in the clear: with one that could be shown again,
whoever listens would have that party's places and the turns of the enrolled.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

import numpy as np

from ostraka.arrays import Float32
from ostraka.config import Member
from ostraka.enclave.lane import Line, kernel_waits, until_ended
from ostraka.enclave.limits import Share, TooMany, Turns
from ostraka.transport import TICKET_BYTES
from ostraka.transport.dial import hold_back

_EACH = 8  # lanes of one enrolled party at a time
_STRANGERS_EACH = 32  # lanes of one address at a time


@dataclass(frozen=True, repr=False)
class _Shown:
    """A model, and who has a ticket for it. ticket: anybody's. own: whose each other one is."""

    model: Float32
    ticket: bytes = field(default_factory=partial(os.urandom, TICKET_BYTES))
    own: dict[bytes, Member] = field(default_factory=dict)
    newest: dict[str, bytes] = field(default_factory=dict)  # by name: nobody has two of them

    def issue(self, party: Member) -> bytes:
        ticket = os.urandom(TICKET_BYTES)
        self.own.pop(self.newest.get(party.name, b""), None)
        self.own[ticket], self.newest[party.name] = party, ticket
        return ticket


@dataclass(frozen=True)
class _Kind:
    """What one kind of peers has for itself. lanes: of one of them at a time."""

    lanes: Share
    turns: Turns


class Downloads:
    """Sends one model to many peers.

    places: turns of the enrolled, and as many of strangers. idle_s: for a TLS handshake, and for
    each part of a model to be taken; and how long a turn lasts while others wait. most_s: how long
    it lasts at most. Use it as a context, on the event loop.
    """

    def __init__(
        self, places: int, *, idle_s: float, most_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        turns = partial(Turns, places, turn_s=idle_s, most_s=most_s)
        self._enrolled = _Kind(Share(_EACH), turns())
        self._strangers = _Kind(Share(_STRANGERS_EACH), turns())
        self._threads = ThreadPoolExecutor(2 * places, thread_name_prefix="ostraka-download")
        self._line = partial(Line, idle_s=idle_s, tls=tls, waits=kernel_waits())
        self._shown: _Shown | None = None
        self._past = b""  # the ticket for the model before

    def __enter__(self) -> "Downloads":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown()

    def show(self, model: Float32) -> bytes:
        """Serve this model and no other. Return the ticket that anybody may use. Any thread may."""
        shown = self._shown
        if shown is None or shown.model is not model:
            self._past = b"" if shown is None else shown.ticket
            shown = self._shown = _Shown(model)
        return shown.ticket

    def ticket(self, model: Float32, party: Member | None) -> bytes:
        """Return a ticket for this model, which is the present one. party: None for a stranger."""
        anybody = self.show(model)
        return anybody if party is None or self._shown is None else self._shown.issue(party)

    def knows(self, ticket: bytes) -> bool:
        """Return whether anybody may use this ticket, or might before the model was replaced."""
        shown = self._shown
        return shown is not None and ticket in (shown.ticket, self._past)

    def claim(self, ticket: bytes, address: str) -> "Download | None":
        """Return the lane that a peer of this address may have by its ticket, if any."""
        shown = self._shown
        party = None if shown is None else shown.own.pop(ticket, None)
        if shown is None or (party is None and ticket != shown.ticket):
            return None
        kind, name = (self._strangers, address) if party is None else (self._enrolled, party.name)
        try:
            kind.lanes.take(name)
        except TooMany:
            return None
        return Download(
            party,
            np.ascontiguousarray(shown.model).data.cast("B"),
            line=self._line,
            turns=kind.turns,
            threads=self._threads,
            over=partial(kind.lanes.give_back, name),
        )


class Download:
    """One lane. It holds a view of the model, whose memory is not used again before it has ended.

    over: called once it has.
    """

    def __init__(
        self,
        party: Member | None,
        model: memoryview,
        *,
        line: Callable[[socket.socket], Line],
        turns: Turns,
        threads: ThreadPoolExecutor,
        over: Callable[[], None],
    ) -> None:
        self.party = party
        self._model = model
        self._line_of = line
        self._turns = turns
        self._threads = threads
        self._over = over
        self._line: Line | None = None
        self._sending: asyncio.Task[None] | None = None

    def connect(self, near: socket.socket, gone: Callable[[], None]) -> None:
        """Send over the connection that has shown the ticket. gone: called once it is closed."""
        try:
            hold_back(near)
            line = self._line = self._line_of(near)
        except OSError:  # It has ended already.
            near.close()
            self._over()
            gone()
            return
        self._sending = asyncio.get_running_loop().create_task(self._send(line))
        self._sending.add_done_callback(partial(self._end, line, gone))

    def cut(self) -> None:
        """Break the connection off. Its thread finds that it has ended."""
        if self._line is not None:
            self._line.cut()
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self, line: Line) -> None:
        with suppress(TimeoutError):  # Others wait for the turn.
            async with self._turns.turn():
                loop = asyncio.get_running_loop()
                sending = loop.run_in_executor(self._threads, _send, line, self._model)
                await until_ended(sending, cut=line.cut)

    def _end(self, line: Line, gone: Callable[[], None], sent: "asyncio.Task[None]") -> None:
        line.close()
        self._over()
        gone()


def _send(line: Line, model: memoryview) -> None:
    """A peer that is too slow, or gone, has only itself to tell. An error that went on from here
    would hold the model, until Python finds out."""
    try:
        line.begin()
        line.pour(model)
    except OSError:  # TimeoutError is one.
        line.forget()
