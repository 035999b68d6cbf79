"""Runs a module as a program that cannot outlive the process that started it.

python -m ostraka.demo.tether PARENT MODULE [ARGUMENTS]
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, however that came to its end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # It was gone before the kernel knew.
        sys.exit(1)


if __name__ == "__main__":
    main()
