"""How turns become a table, which peers are here, and the environment that ByzFL gets."""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench import peers
from ostraka_lab.bench.entrants import Contest

CONTEST = Contest(12, 5000)
HONEST = list(range(10))
ATTACKER = 11


@pytest.fixture
def stage(monkeypatch):
    """Turns that take the time and select the clients that a test says; all are installed."""
    calls = []
    told: dict[tuple[str, bool], tuple[float, list[int]]] = {}

    def run_module(module, arguments, begin, *, threads, python=None):
        if module == "ostraka_lab.bench.peers":
            one_more = [*HONEST[:-1], 10]
            return {"n-f-2": HONEST, "n-f-1": one_more, "attackers": [ATTACKER]}
        name = arguments[0]
        centred = '"centred": true' in arguments[1]
        calls.append((name, centred))
        seconds, selected = told.get((name, centred), (1.0, HONEST))
        turn = calls.count((name, centred))
        return {
            "cpu_s": seconds * turn,
            "all_roles_cpu_s": 10 * seconds,
            "wall_s": 2.0,
            "peak_rss_mib": 3.0,
            "selected": selected,
        }

    monkeypatch.setattr(peers, "run_module", run_module)
    monkeypatch.setattr(peers, "python_for", lambda name: "python")
    return calls, told


def play(names=peers.NAMES, repeat=3):
    return peers.play(CONTEST, lambda *_: None, names=names, repeat=repeat)


def rows(figures):
    return {row["name"]: row for row in figures["rows"]}


def test_every_repetition_runs_every_peer(stage):
    calls, _ = stage
    figures = play(repeat=2)
    timed = [name for name, centred in calls if not centred]
    assert timed == [*peers.NAMES, *peers.NAMES]
    assert [name for name, centred in calls if centred] == ["flower", "byzfl-torch", "byzfl-numpy"]
    assert [row["name"] for row in figures["rows"]] == list(peers.NAMES)


def test_figures_are_medians_beside_the_floor(stage):
    _, told = stage
    told["floor", False] = (2.0, HONEST)
    told["ostraka-exact", False] = (6.0, HONEST)
    row = rows(play())["ostraka-exact"]
    assert row["cpu_s"] == 12  # the median of 6, 12 and 18
    assert row["x_floor"] == 3
    assert row["cpu_spread"] == 1
    assert row["enclave_cpu_s"] is None


def test_all_roles_of_ours_are_set_against_those_of_each_that_ran_in_the_clear(stage, monkeypatch):
    _, told = stage
    told["flower", False] = (4.0, HONEST)
    told["blas-clear", False] = (0.5, HONEST)
    absent = ("byzfl-torch", "byzfl-numpy")
    monkeypatch.setattr(peers, "python_for", lambda name: None if name in absent else "python")
    found = rows(play())
    assert found["ostraka-exact-sketch"]["all_roles_over"] == {"flower": 0.25, "blas-clear": 2.0}
    assert found["flower"]["all_roles_over"] == found["byzfl-torch"]["all_roles_over"] == {}
    assert rows(play(names=["ostraka-exact"]))["ostraka-exact"]["all_roles_over"] == {}


def test_each_is_judged_by_its_own_convention(stage):
    _, told = stage
    found = rows(play())
    assert found["flower"]["correct"] is True
    assert found["byzfl-torch"]["correct"] is False  # one neighbour more selects another
    told["byzfl-torch", False] = told["byzfl-torch", True] = (1.0, [*HONEST[:-1], 10])
    found = rows(play())
    assert found["byzfl-torch"]["correct"] is True
    assert found["byzfl-torch"]["correct_on_differences"] is True


def test_an_attacker_is_counted(stage):
    _, told = stage
    told["flower", False] = (1.0, [*HONEST[:-1], ATTACKER])
    row = rows(play())["flower"]
    assert (row["correct"], row["attackers_kept"]) == (False, 1)
    assert row["correct_on_differences"] is True


def test_the_floor_is_not_judged(stage):
    assert rows(play())["floor"]["correct"] is None


def test_who_is_absent_says_how_to_get_it(stage, monkeypatch):
    absent = ("flower", "byzfl-torch", "byzfl-numpy")
    monkeypatch.setattr(peers, "python_for", lambda name: None if name in absent else "python")
    found = rows(play())
    assert "in a clone, pip install" in found["flower"]["absent"]
    assert "--setup" in found["byzfl-numpy"]["absent"]
    assert found["flower"]["cpu_s"] is None
    assert found["flower"]["correct"] is None
    assert found["ostraka-exact"]["absent"] is None


def test_short_updates_have_no_sketch(stage):
    figures = peers.play(Contest(12, 4000), lambda *_: None, names=peers.NAMES, repeat=1)
    assert "4096" in rows(figures)["ostraka-exact-sketch"]["absent"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"names": ["krum"]}, "no peer krum"), ({"repeat": 0}, "repeat must be at least 1")],
)
def test_impossible_requests_are_refused(stage, options, message):
    with pytest.raises(ConfigError, match=message):
        play(**options)


def test_sizes_beyond_the_memory_are_refused(stage, monkeypatch):
    monkeypatch.setattr(peers, "available_bytes", lambda: 1)
    with pytest.raises(ConfigError, match="GiB of memory"):
        play()


def test_two_of_us_in_processes_of_their_own():
    figures = peers.play(
        CONTEST, lambda *_: None, names=["floor", "ostraka-exact-sketch"], repeat=1
    )
    row = rows(figures)["ostraka-exact-sketch"]
    assert row["correct"] is True
    assert row["x_floor"] > 1


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
    assert peers.python_for("ostraka-exact") == Path(sys.executable)


def test_flower_without_its_package_is_absent(monkeypatch):
    without(monkeypatch, "flwr")
    assert peers.python_for("flower") is None
    assert "pip install" in peers.advice("flower")


def test_byzfl_is_absent_before_its_setup(cache):
    assert peers.python_for("byzfl-torch") is None
    assert "bench peers --setup" in peers.advice("byzfl-torch")


def test_byzfl_needs_torch(cache, monkeypatch):
    without(monkeypatch, "torch")
    assert "torch" in peers.advice("byzfl-numpy")
    with pytest.raises(ConfigError, match="needs torch"):
        peers.setup(lambda *_: None)


def test_an_install_that_fails_is_told_in_one_line(cache, monkeypatch):
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)

    def fail(command, **_):
        assert command[-2:] == ["--no-deps", peers.BYZFL]
        return subprocess.CompletedProcess(command, 1, "", "much\nERROR: no such version\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ConfigError, match=r"byzfl==.* cannot be installed: ERROR: no such version"):
        peers.setup(lambda *_: None)


@pytest.mark.slow
def test_the_environment_has_stand_ins_before_our_own_packages(cache, monkeypatch):
    """Everything but the download: a real environment that finds our numpy and no torchvision."""
    monkeypatch.setattr(peers, "_install", lambda: None)
    create = venv.create
    monkeypatch.setattr(venv, "create", lambda folder, **_: create(folder, with_pip=False))
    peers.setup(lambda *_: None)
    python = peers.python_for("byzfl-torch")
    assert python is not None
    probe = (
        "import torchvision, seaborn, matplotlib.pyplot, numpy, ostraka\n"
        "from torchvision import transforms\n"
        "transforms.Compose([transforms.ToTensor()])\n"
        "print(seaborn.__file__, numpy.__version__)"
    )
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True)
    assert "stand_ins" in done.stdout
