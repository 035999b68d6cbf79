"""The enclave: the only party that sees updates, distances and scores.

Enclave.open_round() -> Collecting       clients' sealed updates come in
Collecting.close()   -> Cohort           who takes part is now fixed
Cohort.offload()     -> Connecting       each worker is offered a channel for one attempt
Connecting.connect() -> Masking          first pass: open, check, clip, mask, seal to workers
Masking.decode()     -> Averaging        distances and Multi-Krum; or a Dispute: a worker lied
Cohort.inside()      -> MeasuringInside  the first pass without workers, also to an Averaging
Averaging.average()  -> Published        second pass: the aggregate and its receipt
"""

from ostraka.protocol.enclave.averaging import Averaging, Published
from ostraka.protocol.enclave.cohort import Cohort, Connecting
from ostraka.protocol.enclave.collecting import Collecting, Enclave
from ostraka.protocol.enclave.dispute import Dispute
from ostraka.protocol.enclave.inside import MeasuringInside
from ostraka.protocol.enclave.lanes import Lanes
from ostraka.protocol.enclave.masking import Masking

__all__ = [
    "Averaging",
    "Cohort",
    "Collecting",
    "Connecting",
    "Dispute",
    "Enclave",
    "Lanes",
    "Masking",
    "MeasuringInside",
    "Published",
]
