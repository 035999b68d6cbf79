"""Moves bytes (gRPC, and tiles beside it), and knows no roles."""

import struct

from ostraka.encoding import encode
from ostraka.messages import Abandon, Charter, Link
from ostraka.transport import ostraka_pb2 as wire

LANE = b"OSTRAKA\x01"  # begins the connection of a lane; a ticket follows
TICKET_BYTES = 32
ANSWER_PIECE = 2**18  # bytes of a worker's answer in one message
LENGTH = struct.Struct(">I")  # begins each frame of a lane; a sealed tile follows

PROVED = "ostraka-proved"  # a caller's metadata, on a connection that it has proved to be its own
FINISHED = "finished"  # what a service says when all rounds are over


def chain_link(link: Link) -> wire.ChainLink:
    """A link of the chain, as it is sent."""
    if isinstance(link, Charter):
        return wire.ChainLink(charter=encode(link))
    if isinstance(link, Abandon):
        return wire.ChainLink(abandon=encode(link))
    return wire.ChainLink(certified=encode(link))
