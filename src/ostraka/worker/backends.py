"""The kernels that a worker can compute with, by the name of their device.

To add a kernel, write its module in this package and add a line to `KERNELS`.
"""

import re
from collections.abc import Callable

from ostraka.core.gram import Kernel, NumpyKernel
from ostraka.errors import ConfigError, installing

AUTO = "auto"


def _torch(device: str) -> Kernel:
    try:
        # Torch is an optional dependency and takes seconds to import.
        from ostraka.worker.torch_kernel import TorchKernel  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            f"device {device!r} needs torch, which is not installed: {installing('torch')}"
        ) from None
    return TorchKernel(device)


# Each function gets the whole name of the device, and raises ConfigError if there is none here.
KERNELS: dict[str, Callable[[str], Kernel]] = {
    "cpu": lambda _: NumpyKernel(),
    "torch": lambda _: _torch("cpu"),
    "torch-cpu": lambda _: _torch("cpu"),
    "cuda": _torch,
    "cuda:<number>": _torch,
}


def choose(device: str) -> Kernel:
    """Returns the kernel for a device, such as "cpu" or "cuda:1".

    Raises ConfigError if no kernel has this name, or if there is no such device here.
    """
    name = re.sub(r":[0-9]+\Z", ":<number>", device)
    if name not in KERNELS:
        known = ", ".join(map(repr, KERNELS))
        raise ConfigError(f"no kernel for device {device!r}: choose one of {known}")
    return KERNELS[name](device)


def kernel_for(device: str) -> tuple[Kernel, str]:
    """Returns the kernel and the device that it is for. "auto" is a GPU where one can be used.

    Raises ConfigError as `choose` does.
    """
    if device != AUTO:
        return choose(device), device
    try:
        return choose("cuda"), "cuda"
    except ConfigError:
        return choose("cpu"), "cpu"
