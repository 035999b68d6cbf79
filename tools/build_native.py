"""Builds the loops in C: `python tools/build_native.py` puts `_native.so` beside native.c.

`pip install` does the same by hatch_build.py. The same compiler makes the same bytes, wherever it
runs: no path and no time is in them.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src" / "ostraka" / "core" / "loops"
SOURCE, LIBRARY = FOLDER / "native.c", FOLDER / "_native.so"

# Contracted into one rounding, a product and a sum would not be numpy's; the other two only say
# that nobody looks at errno or at the flags of the floating-point unit.
_EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_FLAGS = ("-std=c11", "-O3", *_EXACT, "-fPIC", "-fvisibility=hidden", "-shared")
_REPRODUCIBLE = ("-g0", "-Wl,--build-id=none")
_WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter")


def compiler() -> list[str] | None:
    """Returns the command of a C compiler that is installed: $CC, cc, gcc or clang."""
    chosen = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    for command in (*chosen, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    return None


def build(out: Path = LIBRARY, more: Sequence[str] = ()) -> None:
    """Compiles native.c. Raises OSError without a compiler, and CalledProcessError if it fails.

    more: further flags, such as those of a sanitizer.
    """
    command = compiler()
    if command is None:
        raise OSError("no C compiler was found: install gcc or clang, or set CC")
    unfinished = out.with_name(f"{out.name}.{os.getpid()}")
    flags = (*_FLAGS, *_REPRODUCIBLE, *_WARNINGS, *more)
    try:
        # The name of the source is relative, so that no message and no symbol has its folder.
        subprocess.run(  # noqa: S603 (the compiler of whoever builds, and no shell)
            [*command, *flags, "-o", str(unfinished.resolve()), SOURCE.name],
            cwd=SOURCE.parent,
            check=True,
        )
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        build()
    except (OSError, subprocess.CalledProcessError) as failed:
        sys.exit(str(failed))
