"""A worker as a process: dials the enclave, serves it, and comes back whenever it is gone."""

from ostraka.services.worker.kernel import kernel_for
from ostraka.services.worker.pin import EnclavePin
from ostraka.services.worker.service import WorkerService
from ostraka.services.worker.session import Staff

__all__ = ["EnclavePin", "Staff", "WorkerService", "kernel_for"]
