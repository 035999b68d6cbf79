"""The kernels a worker can compute with: numpy, and torch on a processor or on a GPU.

Torch is imported only when a kernel needs it, so that a worker without it can still run.
"""

import re

from ostraka.core.gram import Kernel, NumpyKernel
from ostraka.errors import ConfigError

_CUDA = re.compile(r"cuda(:\d+)?")


def choose(device: str) -> Kernel:
    """The kernel for "cpu" (numpy), "torch-cpu" or "torch", "cuda" or "cuda:1".

    Raises ConfigError if there is no such device here.
    """
    if device == "cpu":
        return NumpyKernel()
    if device in {"torch", "torch-cpu"}:
        return _torch_kernel("cpu")
    if _CUDA.fullmatch(device):
        return _torch_kernel(device)
    raise ConfigError(
        f"no kernel for device {device!r}: choose 'cpu', 'torch-cpu', 'cuda' or 'cuda:<number>'"
    )


def _torch_kernel(device: str) -> Kernel:
    try:
        # Torch is an optional dependency and takes seconds to import.
        from ostraka.worker.torch_kernel import TorchKernel  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            f"device {device!r} needs torch, which is not installed: pip install 'ostraka[torch]'"
        ) from None
    return TorchKernel(device)


AUTO = "auto"


def kernel_for(device: str) -> tuple[Kernel, str]:
    """The kernel and the device that it is for. "auto" is a GPU where one can be used.

    Raises ConfigError if there is no such device here.
    """
    if device != AUTO:
        return choose(device), device
    try:
        return choose("cuda"), "cuda"
    except ConfigError:
        return choose("cpu"), "cpu"
