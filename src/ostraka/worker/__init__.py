"""A worker as a process: dials the enclave, serves it, and comes back whenever it is gone."""

from ostraka.worker.backends import kernel_for
from ostraka.worker.pin import EnclavePin
from ostraka.worker.service import WorkerService
from ostraka.worker.session import Staff

__all__ = ["EnclavePin", "Staff", "WorkerService", "kernel_for"]
