"""A worker's service: it dials its enclaves, serves them, and dials again when one is gone."""

from ostraka.worker.backends import kernel_for
from ostraka.worker.pin import EnclavePin, Verifier
from ostraka.worker.ray_kernel import RayKernel, RayOptions
from ostraka.worker.service import WorkerService, serve_all
from ostraka.worker.session import Staff

__all__ = [
    "EnclavePin",
    "RayKernel",
    "RayOptions",
    "Staff",
    "Verifier",
    "WorkerService",
    "kernel_for",
    "serve_all",
]
