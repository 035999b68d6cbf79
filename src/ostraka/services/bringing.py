"""A signed revision, brought to a running enclave."""

from pathlib import Path

import grpc

from ostraka.encoding import encode
from ostraka.errors import ServiceError
from ostraka.messages import Charter
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import AdoptRequest
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

_SECONDS = 30.0


def bring(charter: Charter, address: str, tls_ca: Path | None = None) -> None:
    """It comes into force with the next round. Raises ServiceError if the enclave refuses it."""
    with dial(address, tls_ca=tls_ca) as channel:
        try:
            request = AdoptRequest(charter=encode(charter))
            EnclaveStub(channel).Adopt(request, timeout=_SECONDS)
        except grpc.RpcError as refused:
            raise ServiceError(f"{address} did not take it: {refused.details()}") from None
