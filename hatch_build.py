"""The step of `pip install` that builds the loops in C, if there is a compiler (ADR 0017)."""

import runpy
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLoops(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Puts the library beside its source, for an editable install as for a wheel."""
        tool = runpy.run_path(str(Path(self.root) / "tools" / "build_native.py"))
        library: Path = tool["LIBRARY"]
        try:
            tool["build"]()
        except (OSError, subprocess.CalledProcessError) as failed:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"no loops in C, numpy runs in their place: {failed}")
            return
        # Any Python 3 can load it, on this platform.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")
