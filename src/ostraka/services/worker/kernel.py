"""Which device a worker computes on."""

from ostraka.backends import choose
from ostraka.core.gram import Kernel
from ostraka.errors import ConfigError

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
