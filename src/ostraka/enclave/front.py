"""The service's door: takes connections in, passes their bytes on, and keeps room for the enrolled.

gRPC limits all connections together and none by address, and an idle connection never reaches our
code. So gRPC listens behind this door, on a socket that only this process can reach. Bytes are
passed on unread: with TLS, the door sees ciphertext. Only connections that begin as a lane does are
not for gRPC: with a ticket they go to what it was issued for.
"""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import unquote

from ostraka.config import Member
from ostraka.enclave.lane import Tickets
from ostraka.enclave.limits import neighbourhood
from ostraka.enclave.passage import Passage, Pipes
from ostraka.errors import ConfigError

EACH = 8  # connections of one enrolled party that keep their place

_NONCE_BYTES = 32
_ACCEPTED = 64  # connections, before others have their turn
_BACKLOG = 1024
_LINGER_S = 2.5  # for connections to end by themselves
_POLL_S = 0.02
_DIAL_S = 1.0  # to a server of the same machine
_FORETOLD_S = 2.0  # for a ticket that is shown before it is known
_PAUSE_S = 1.0  # without descriptors
_FILES = 3  # descriptors of one connection
_SPARE_FILES = 512  # for everything else
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (compared, not bound)


def _nothing() -> None:
    """What there is to end of a connection that has not begun, or has ended."""


@dataclass(eq=False)
class Visitor:
    """One connection. nonce: what a party signs, to prove that this connection is its own."""

    address: str  # see `neighbourhood`
    end: Callable[[], None] = field(default=_nothing, repr=False)
    nonce: bytes = field(default_factory=partial(os.urandom, _NONCE_BYTES), repr=False)
    party: Member | None = None  # that has proved itself on this connection
    name: str = ""  # behind the door
    hellos: int = 0  # that were heard


class Guests:
    """Who has a place: strangers share `places`, and each enrolled party has places of its own.

    When all places of strangers are taken, the address that holds most of them gives up its oldest
    one. So a flood evicts itself, and whoever comes has time to prove who it is.
    """

    def __init__(self, places: int, each: int = EACH) -> None:
        self._places = places
        self._each = each
        self._strangers: dict[str, dict[Visitor, None]] = {}  # by address, the oldest first
        self._enrolled: dict[str, dict[Visitor, None]] = {}  # by name
        self.count = 0  # of strangers

    def admit(self, visitor: Visitor) -> Visitor | None:
        """Give a stranger a place. Return who has to leave for it, if anybody."""
        self._strangers.setdefault(visitor.address, {})[visitor] = None
        self.count += 1
        if self.count <= self._places:
            return None
        heaviest = max(self._strangers.values(), key=len)
        return next(iter(heaviest))

    def prove(self, visitor: Visitor, party: Member) -> Visitor | None:
        """Give a visitor that has proved itself a place of its own. Return who has to leave."""
        self.leave(visitor)
        visitor.party = party
        mine = self._enrolled.setdefault(party.name, {})
        mine[visitor] = None
        if len(mine) <= self._each:
            return None
        oldest = next(iter(mine))
        self.leave(oldest)
        oldest.party = None
        return self.admit(oldest)

    def leave(self, visitor: Visitor) -> None:
        """Take the visitor's place back, if it has one."""
        if visitor.party is not None:
            _discard(self._enrolled, visitor.party.name, visitor)
        elif _discard(self._strangers, visitor.address, visitor):
            self.count -= 1


def _discard(places: dict[str, dict[Visitor, None]], key: str, visitor: Visitor) -> bool:
    """Remove a visitor. Return whether it was there."""
    held = places.get(key, {})
    if visitor not in held:
        return False
    del held[visitor]
    if not held:
        del places[key]
    return True


class Lane(Protocol):
    """What a ticket opens. party: whose it is, if it is anybody's."""

    @property
    def party(self) -> Member | None: ...

    def connect(self, near: socket.socket, gone: Callable[[], None]) -> None:
        """Take over the connection that has shown the ticket. gone: called once it is closed."""
        ...

    def cut(self) -> None:
        """Break the connection off."""
        ...


class Lanes(Protocol):
    """Whose tickets are shown at the door."""

    def claim(self, ticket: bytes, address: str) -> Lane | None:
        """Return the lane that a peer of this address may have by its ticket, if any."""
        ...


class Front:
    """Listens for clients and workers, and passes each connection on to the server behind it.

    folder: for sockets; an empty one that only this process reaches. idle_s: after which a
    connection is closed whose peer says nothing at first, or takes nothing. lanes: what tickets
    open. foretold: whose tickets a peer may know a little earlier than we do. crowded: told of an
    address that had to give up a connection. Use it as a context.
    """

    def __init__(
        self,
        places: int,
        *,
        folder: Path,
        idle_s: float,
        lanes: Sequence[Lanes],
        foretold: Tickets | None = None,
        crowded: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._guests = Guests(_affordable(places))
        self._idle_s = idle_s
        self._lanes = lanes
        self._foretold = foretold
        self._crowded = crowded
        self._pipes = Pipes()
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._unix = _names_peers(self._folder)
        self._numbers = count(1)
        self._behind: Any = None  # the address of the server behind the door
        self._listening: list[socket.socket] = []
        self._visitors: set[Visitor] = set()
        self._named: dict[str, Visitor] = {}  # by their names behind the door

    def __enter__(self) -> "Front":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_listening()
        for visitor in tuple(self._visitors):
            visitor.end()
        self._pipes.close()

    def back_address(self) -> str:
        """Return a fresh address for a server behind the door, as gRPC writes it."""
        if self._unix:
            return f"unix:{self._folder / f's{next(self._numbers)}'}"
        return "127.0.0.1:0"

    def pass_on_to(self, address: str, port: int) -> None:
        """Pass connections on to the server that is bound to this address of `back_address`."""
        self._behind = address.removeprefix("unix:") if self._unix else ("127.0.0.1", port)

    def listen(self, address: str) -> int:
        """Take in whoever comes to HOST:PORT. Return the port. Raises ConfigError."""
        host, _, port = address.rpartition(":")
        try:
            self._listening = _bound(host.strip("[]"), int(port))
        except OSError:
            raise ConfigError(
                f"cannot listen on {address}: is another service there, or is the address not "
                "this machine's?"
            ) from None
        for each in self._listening:
            self._loop.add_reader(each, self._accept, each)
        return int(self._listening[0].getsockname()[1])

    def stop_listening(self) -> None:
        for each in self._listening:
            self._loop.remove_reader(each)
            each.close()
        self._listening.clear()

    @property
    def traffic(self) -> tuple[int, int]:
        """The bytes that went in and out so far, without those of lanes."""
        return self._pipes.bytes_in, self._pipes.bytes_out

    async def drained(self) -> None:
        """Wait until the connections have ended whose server has ended, for a short time."""
        until = self._loop.time() + _LINGER_S
        while self._visitors and self._loop.time() < until:
            await asyncio.sleep(_POLL_S)

    def visitor(self, peer: str) -> Visitor:
        """Return who it is that gRPC calls by this name."""
        return self._named.get(unquote(peer)) or Visitor("unknown")

    def prove(self, visitor: Visitor, party: Member) -> None:
        """Note that this party has proved that the connection is its own."""
        if visitor in self._visitors and visitor.party != party:
            self._evict(self._guests.prove(visitor, party))

    def _dial(self, visitor: Visitor) -> socket.socket:
        """Connect to the server behind the door."""
        far = socket.socket(socket.AF_UNIX if self._unix else socket.AF_INET)
        try:
            far.setblocking(False)
            visitor.name = self._connect_unix(far) if self._unix else self._connect_tcp(far)
        except BaseException:
            far.close()
            raise
        self._named[visitor.name] = visitor
        return far

    def _gone(self, visitor: Visitor) -> None:
        self._guests.leave(visitor)
        self._named.pop(visitor.name, None)
        self._visitors.discard(visitor)

    def _connect_unix(self, far: socket.socket) -> str:
        path = self._folder / f"c{next(self._numbers)}"
        far.bind(str(path))
        try:
            far.connect(self._behind)
        finally:
            path.unlink(missing_ok=True)
        return f"unix:{path}"

    def _connect_tcp(self, far: socket.socket) -> str:
        far.setblocking(True)  # Within one machine it takes no time.
        far.settimeout(_DIAL_S)
        far.connect(self._behind)
        far.setblocking(False)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return f"ipv4:127.0.0.1:{far.getsockname()[1]}"

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED):
            try:
                near, where = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # There are no descriptors left, and the queue would be readable on.
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE_S, self._accept_again, listening)
                return
            self._take_in(near, str(where[0]))

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    def _take_in(self, near: socket.socket, host: str) -> None:
        near.setblocking(False)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        visitor = Visitor(neighbourhood(host))
        passage = Passage(
            near,
            dial=partial(self._dial, visitor),
            lane=partial(self._open_lane, visitor),
            gone=partial(self._gone, visitor),
            pipes=self._pipes,
            idle_s=self._idle_s,
        )
        visitor.end = passage.close
        self._visitors.add(visitor)
        self._evict(self._guests.admit(visitor))
        passage.start()

    def _open_lane(self, visitor: Visitor, near: socket.socket, ticket: bytes) -> None:
        """Hand a connection to what its ticket is for, or close it."""
        for lanes in self._lanes:
            if (lane := lanes.claim(ticket, visitor.address)) is not None:
                self._hand_over(visitor, near, lane)
                return
        if not self._await_lane(visitor, near, ticket):
            self._turn_away(visitor, near)

    def _await_lane(self, visitor: Visitor, near: socket.socket, ticket: bytes) -> bool:
        """Hold a connection whose ticket we may be told of in a moment. Return whether it is held.

        Meanwhile it has the place of a stranger, as one that has said nothing.
        """
        tickets = self._foretold
        if tickets is None:
            return False

        def issued(lane: Lane) -> None:
            late.cancel()
            self._hand_over(visitor, near, lane)

        def missed() -> None:
            late.cancel()
            tickets.miss(ticket)
            self._turn_away(visitor, near)

        if not tickets.await_issue(ticket, issued):
            return False
        late = self._loop.call_later(_FORETOLD_S, missed)
        visitor.end = missed
        return True

    def _hand_over(self, visitor: Visitor, near: socket.socket, lane: Lane) -> None:
        visitor.end = partial(self._end_lane, visitor, lane)
        lane.connect(near, partial(self._lane_gone, visitor))
        if lane.party is not None:
            self.prove(visitor, lane.party)

    def _turn_away(self, visitor: Visitor, near: socket.socket) -> None:
        near.close()
        self._gone(visitor)

    def _lane_gone(self, visitor: Visitor) -> None:
        visitor.end = _nothing  # It would hold the lane, and so the model, until Python finds out.
        self._gone(visitor)

    def _end_lane(self, visitor: Visitor, lane: Lane) -> None:
        self._gone(visitor)  # Its place is free before its thread has noticed.
        lane.cut()

    def _evict(self, visitor: Visitor | None) -> None:
        if visitor is not None:
            visitor.end()
            self._crowded(visitor.address)


def _affordable(places: int) -> int:
    """Return how many connections there can be, after raising the limit on open files if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES * places + _SPARE_FILES
    if hard == resource.RLIM_INFINITY or needed <= hard:
        allowed = max(soft, needed) if soft != resource.RLIM_INFINITY else soft
    else:
        allowed = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == resource.RLIM_INFINITY:
        return places
    return max(1, min(places, (allowed - _SPARE_FILES) // _FILES))


def _bound(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for all addresses of this host. Raises OSError.

    As with gRPC, a wildcard of one family is a wildcard of both.
    """
    if host in _WILDCARDS and socket.has_dualstack_ipv6():
        found = [(socket.AF_INET6, "::")]
    else:
        given = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = list(dict.fromkeys((family, str(where[0])) for family, *_, where in given))
    sockets: list[socket.socket] = []
    try:
        for family, address in found:
            each = socket.create_server(
                (address, port),
                family=family,
                backlog=_BACKLOG,
                dualstack_ipv6=host in _WILDCARDS and family == socket.AF_INET6,
            )
            each.setblocking(False)
            sockets.append(each)
            port = port or each.getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _names_peers(folder: Path) -> bool:
    """Return whether Unix sockets tell who connects. Some systems that imitate Linux do not."""
    listening, near = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with listening, near:
        try:
            listening.bind(str(folder / "listening"))
            listening.listen()
            near.bind(str(folder / "near"))
            near.connect(str(folder / "listening"))
            far, name = listening.accept()
            far.close()
        except OSError:  # such as a path that is too long
            return False
        return bool(name == str(folder / "near"))
