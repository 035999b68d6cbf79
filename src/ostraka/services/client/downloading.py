"""Global models, by their digest."""

import numpy as np

from ostraka.arrays import Float32
from ostraka.config import Federation
from ostraka.errors import ReceiptRefused
from ostraka.protocol.client import require_model
from ostraka.services.client.connection import Connection
from ostraka.transport import ostraka_pb2 as wire


def download(connection: Connection, digest: bytes, federation: Federation) -> Float32:
    """The model (d,) of this digest, not to be written to.

    Raises ReceiptRefused for any other, and ServiceError with NOT_FOUND if it is not kept any more.
    """

    def read() -> Float32:
        vector = np.empty(federation.rules.dimension, "<f4")
        rest = vector.data.cast("B")
        with connection.stream("GetModel", wire.ModelRequest(digest=digest)) as parts:
            for part in parts:
                if len(part.data) > len(rest):
                    raise ReceiptRefused("the model is larger than the federation's rules say")
                rest[: len(part.data)] = part.data
                rest = rest[len(part.data) :]
        if rest:
            raise ReceiptRefused("the model is smaller than the federation's rules say")
        return vector

    vector = connection.attempt(read)
    require_model(vector, digest, federation)
    vector.flags.writeable = False
    return vector
