"""Moves bytes (gRPC), and knows no roles."""

from ostraka.encoding import encode
from ostraka.messages import Charter, Receipt
from ostraka.transport import ostraka_pb2 as wire


def chain_link(link: Charter | Receipt) -> wire.ChainLink:
    """A link of the chain, as it is sent."""
    if isinstance(link, Charter):
        return wire.ChainLink(charter=encode(link))
    return wire.ChainLink(receipt=encode(link))
