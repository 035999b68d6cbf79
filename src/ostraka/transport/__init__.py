"""Moves bytes (gRPC), and knows no roles."""

from ostraka.encoding import encode
from ostraka.messages import Abandon, Charter, Link
from ostraka.transport import ostraka_pb2 as wire

PROVED = "ostraka-proved"  # a caller's metadata, on a connection that it has proved to be its own


def chain_link(link: Link) -> wire.ChainLink:
    """A link of the chain, as it is sent."""
    if isinstance(link, Charter):
        return wire.ChainLink(charter=encode(link))
    if isinstance(link, Abandon):
        return wire.ChainLink(abandon=encode(link))
    return wire.ChainLink(certified=encode(link))
