"""Which peers are here, in which interpreter each runs, and how to get those that are not.

ByzFL asks for torchvision, which does not load beside the processor's build of torch, and loads
seaborn to draw. Neither takes part in its aggregators. So it has an environment of its own, made
without its dependencies: torch, numpy and scipy are those of this interpreter, and stand-ins that
do nothing take the place of what it would load for nothing.
"""

import importlib.util
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from ostraka.calibration import user_cache
from ostraka.errors import ConfigError
from ostraka_lab.bench.process import Begin

BYZFL = "byzfl==0.0.11"
_NEEDED = ("torch", "scipy", "numpy")
_STAND_INS = {
    "torchvision": "from unittest.mock import Mock\ndatasets = transforms = Mock()\n",
    "seaborn": "",
    "matplotlib/pyplot": "",
    "matplotlib/__init__": "",
}
_SETUP = "ostraka bench peers --setup"


def python_for(name: str) -> Path | None:
    """The interpreter that runs this peer, or None if it is absent."""
    if name.startswith("byzfl"):
        own = _byzfl_python()
        return own if own.exists() and not _missing() else None
    if name == "flower" and importlib.util.find_spec("flwr") is None:
        return None
    return Path(sys.executable)


def advice(name: str) -> str:
    """How to get a peer that is absent."""
    if name == "flower":
        return "absent: pip install 'ostraka[flower]'"
    if missing := _missing():
        return f"absent: it needs {', '.join(missing)}; pip install 'ostraka[lab]', then {_SETUP}"
    return f"absent: {_SETUP}"


def setup(begin: Begin) -> Path:
    """Make ByzFL's environment anew. Raises ConfigError if that fails. Gives its folder."""
    if missing := _missing():
        raise ConfigError(f"ByzFL needs {', '.join(missing)}: pip install 'ostraka[lab]'")
    folder = environment()
    begin("an environment for ByzFL", 0, 2)
    venv.create(folder, clear=True, with_pip=True)
    begin(f"installing {BYZFL}", 1, 2)
    _install()
    _lend_packages(_site_packages(folder))
    return folder


def environment() -> Path:
    return user_cache() / "byzfl"


def _install() -> None:
    command = [str(_byzfl_python()), "-m", "pip", "install", "--quiet", "--no-deps", BYZFL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["pip failed"]
        raise ConfigError(f"{BYZFL} cannot be installed: {last[0]}")


def _lend_packages(site: Path) -> None:
    """This interpreter's own packages, behind the environment's; stand-ins before both."""
    for name, text in _STAND_INS.items():
        path = site / "stand_ins" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ours = sysconfig.get_paths()["purelib"]
    lines = [
        f"import sys; sys.path.insert(0, {str(site / 'stand_ins')!r})",
        f"import site; site.addsitedir({ours!r})",
    ]
    (site / "lent.pth").write_text("\n".join(lines) + "\n")


def _site_packages(folder: Path) -> Path:
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    return Path(paths["purelib"])


def _byzfl_python() -> Path:
    return environment() / "bin" / "python"


def _missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]
