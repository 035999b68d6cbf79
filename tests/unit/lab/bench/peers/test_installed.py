"""Which peers are here, and the environment that ByzFL gets."""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench.peers import installed


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OSTRAKA_CACHE", str(tmp_path))
    return tmp_path


def without(monkeypatch, *names):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in names else found(name)
    )


def test_ours_run_here():
    assert installed.python_for("ostraka-exact") == Path(sys.executable)


def test_flower_without_its_package_is_absent(monkeypatch):
    without(monkeypatch, "flwr")
    assert installed.python_for("flower") is None
    assert "pip install" in installed.advice("flower")


def test_byzfl_is_absent_before_its_setup(cache):
    assert installed.python_for("byzfl-torch") is None
    assert "bench peers --setup" in installed.advice("byzfl-torch")


def test_byzfl_needs_torch(cache, monkeypatch):
    without(monkeypatch, "torch")
    assert "torch" in installed.advice("byzfl-numpy")
    with pytest.raises(ConfigError, match="needs torch"):
        installed.setup(lambda *_: None)


def test_an_install_that_fails_is_told_in_one_line(cache, monkeypatch):
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)

    def fail(command, **_):
        assert command[-2:] == ["--no-deps", installed.BYZFL]
        return subprocess.CompletedProcess(command, 1, "", "much\nERROR: no such version\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ConfigError, match=r"byzfl==.* cannot be installed: ERROR: no such version"):
        installed.setup(lambda *_: None)


@pytest.mark.slow
def test_the_environment_has_stand_ins_before_our_own_packages(cache, monkeypatch):
    """Everything but the download: a real environment that finds our numpy and no torchvision."""
    monkeypatch.setattr(installed, "_install", lambda: None)
    create = venv.create
    monkeypatch.setattr(venv, "create", lambda folder, **_: create(folder, with_pip=False))
    installed.setup(lambda *_: None)
    python = installed.python_for("byzfl-torch")
    assert python is not None
    probe = (
        "import torchvision, seaborn, matplotlib.pyplot, numpy, ostraka\n"
        "from torchvision import transforms\n"
        "transforms.Compose([transforms.ToTensor()])\n"
        "print(seaborn.__file__, numpy.__version__)"
    )
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True)
    assert "stand_ins" in done.stdout
