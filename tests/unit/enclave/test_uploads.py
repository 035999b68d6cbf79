"""Conversations over upload lanes, as far as a whole service does not show them."""

import asyncio
import socket
import ssl
from hashlib import sha256
from typing import Any

import pytest

from ostraka.config import Member
from ostraka.enclave.lane import LaneBroken
from ostraka.enclave.uploads import Talk, Uploads

PATIENCE_S = 60.0
TICKET = b"t" * 32
PARTY = Member("alice", b"a" * 32)


class Ended:
    """TLS over a connection that its peer has ended, with something unread."""

    def wrap_socket(self, near: socket.socket, **options: Any) -> ssl.SSLSocket:
        near.detach()
        raise ssl.SSLError("Closed before TLS handshake with data in recv buffer.")


def test_a_peer_that_has_left_before_the_handshake_is_no_bug_of_ours():
    """It would be told in the log with a trace, as often as somebody likes."""
    heard: list[BaseException] = []

    async def serve(talk: Talk) -> None:
        with pytest.raises(LaneBroken) as left:
            await talk.hear()
        heard.append(left.value)

    async def main() -> None:
        tls: Any = Ended()
        over = asyncio.Event()
        near, far = socket.socketpair()
        near.setblocking(False)
        with Uploads(1, idle_s=PATIENCE_S, readers=1, tls=tls) as uploads, far:
            uploads.serve(serve)
            uploads.announce(sha256(TICKET).digest(), PARTY)
            talk = uploads.claim(TICKET, "127.0.0.1")
            assert talk is not None
            assert talk.party == PARTY
            talk.connect(near, over.set)
            async with asyncio.timeout(PATIENCE_S):
                await over.wait()
            assert uploads.claim(TICKET, "127.0.0.1") is None

    asyncio.run(main())
    assert len(heard) == 1
