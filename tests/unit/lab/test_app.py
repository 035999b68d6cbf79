"""A task of one's own: what an app must be, and that the lab trains, attacks and tests it."""

import itertools
import json
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.cli import app as ostraka
from ostraka.errors import ConfigError
from ostraka_lab import app as apps
from ostraka_lab.attacks import ATTACKS
from ostraka_lab.baselines import Clear, plain_average
from ostraka_lab.experiment import Experiment
from ostraka_lab.task import Judge, load_task

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = {"clients": 5, "byzantine": 1, "rounds": 2}

# The mean of all clients' numbers is what is to be learnt; each import is noted down.
MEANS = """
    import os, sys
    from pathlib import Path

    import numpy as np

    if "IMPORTED" in os.environ:
        with Path(os.environ["IMPORTED"]).open("a") as notes:
            notes.write(" ".join(sys.orig_argv) + "\\n")

    class Means:
        def model(self, seed):
            return {"b": np.zeros((2, 2)), "a": np.full(3, seed)}

        def partitions(self, clients, seed):
            return [float(number) for number in range(1, clients + 1)]

        def train(self, model, part, seed):
            rng = np.random.default_rng(seed)
            for array in model.values():
                array += 0.5 * (part - array) + rng.normal(0, 0.01, array.shape)
            return model

        def evaluate(self, model):
            off = max(float(np.abs(array - 3).max()) for array in model.values())
            return 1 / (1 + off), off

    app = Means()
"""
_names = itertools.count()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write(text): a module with this text in the current folder. Gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def written(text=MEANS):
        name = f"task_of_a_test_{next(_names)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return written


def test_an_app_is_trained_and_tested(write):
    experiment = Experiment.asked(app=f"{write()}:app", attack="none", seed=7, **SMALL)
    task = load_task(experiment)
    manifest, first = task.first()
    assert [(each.name, each.shape) for each in manifest.tensors] == [("a", (3,)), ("b", (2, 2))]
    np.testing.assert_array_equal(first, [7, 7, 7, 0, 0, 0, 0])
    rounds = list(Clear(task, plain_average).rounds())
    np.testing.assert_allclose(rounds[0].model, [5, 5, 5, 1.5, 1.5, 1.5, 1.5], atol=0.1)
    scores = [Judge(task).scores(each.model) for each in rounds]
    assert scores[0]["loss"] == pytest.approx(2, abs=0.1)
    assert scores[1]["loss"] == pytest.approx(1, abs=0.1)
    assert scores[0]["attack_success"] is None
    again = [each.model for each in Clear(load_task(experiment), plain_average).rounds()]
    np.testing.assert_array_equal(again, [each.model for each in rounds])


def test_clients_and_rounds_have_seeds_of_their_own(write):
    task = load_task(Experiment.asked(app=f"{write()}:app", attack="none", **SMALL))
    first, second = Clear(task, plain_average).rounds()
    noise = first.updates - 0.5 * np.arange(1, 6)[:, None]
    assert len(np.unique(noise)) == noise.size
    assert not np.array_equal(first.updates, second.updates)


def test_attackers_attack_it(write):
    experiment = Experiment.asked(app=f"{write()}:app", attack="sign-flip", **SMALL)
    (each, *_) = Clear(load_task(experiment), plain_average).rounds()
    (attacker,) = experiment.attackers
    np.testing.assert_allclose(each.updates[attacker - 1], -10 * attacker / 2, rtol=0.1)


NO_APPS = {
    "no object": ("x = 1", "app", "has no app"),
    "a class": ("class App: pass", "App", "is a class: name an object of it, as in app = App"),
    "a method too few": (
        "class T:\n  def model(self): pass\n  train = evaluate = model\napp = T()",
        "app",
        "lacks partitions: an app has model, partitions, train, evaluate",
    ),
    "an error": ("1 / 0", "app", "cannot be imported: ZeroDivisionError"),
    "a library too few": ("import not_there_at_all", "app", "needs not_there_at_all: install it"),
}


@pytest.mark.parametrize("what", NO_APPS)
def test_what_is_no_app_is_refused(write, what):
    text, attribute, words = NO_APPS[what]
    with pytest.raises(ConfigError, match=words):
        apps.load(f"{write(text)}:{attribute}")


def test_a_module_that_is_not_found_says_where_to_put_it(write):
    with pytest.raises(
        ConfigError, match=r"there is no module nowhere.*in the folder that holds it, or install it"
    ):
        apps.load("nowhere.at_all:app")
    for name in ("nowhere", "nowhere:", ":app", "no where:app"):
        with pytest.raises(ConfigError, match="such as my_task:app"):
            apps.load(name)


WRONG = {
    "other arrays than the model's": ("return model", "return {'a': model['a']}", "the model has"),
    "no arrays": ("return model", "return 3", "is arrays of numbers by their names"),
    "a partition too few": ("clients + 1", "clients", "has 4 partitions for 5 clients"),
    "one number for a score": ("return 1 / (1 + off), off", "return off", "two numbers"),
    "a percentage": ("return 1 / (1 + off), off", "return 97.0, off", "from 0 to 1; got 97"),
}


def train_and_test(name):
    task = load_task(Experiment.asked(app=name, **SMALL))
    each, *_ = Clear(task, plain_average).rounds()
    return Judge(task).scores(each.model)


@pytest.mark.parametrize("what", WRONG)
def test_what_an_app_gives_is_checked(write, what):
    old, new, words = WRONG[what]
    assert old in MEANS
    name = write(MEANS.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        train_and_test(f"{name}:app")


@pytest.mark.parametrize("name", [each for each in ATTACKS if ATTACKS[each].needs_of_task])
def test_attacks_on_examples_say_what_they_need(name):
    with pytest.raises(ConfigError, match=rf"{name} needs .*choose an attack on updates"):
        Experiment.asked(app="my_task:app", attack=name)


def test_these_are_the_attacks_on_examples():
    found = {each for each in ATTACKS if ATTACKS[each].needs_of_task}
    assert found == {"label-flip", "backdoor", "dba", "neurotoxin", "layer-wise"}


CHOICES = {
    "dataset": "mnist",
    "model": "cnn",
    "partition": "shards:2",
    "steps": 3,
    "batch": 8,
    "learning_rate": 0.2,
    "root_images": 10,
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_of_the_lab_s_own_tasks_are_refused_beside_an_app(name):
    with pytest.raises(ConfigError, match=f"{name} is a choice for the lab's own tasks"):
        Experiment.asked(app="my_task:app", **{name: CHOICES[name]})


def test_an_experiment_with_an_app_is_read_back_and_one_from_before_is_read():
    experiment = Experiment.asked(app="my_task:app", attack="alie")
    assert Experiment.from_json(json.loads(json.dumps(experiment.to_json()))) == experiment
    before = Experiment().to_json()
    del before["app"], before["report_metrics"]
    assert Experiment.from_json(before) == Experiment()


def run(*words):
    result = CliRunner().invoke(ostraka, [*map(str, words)], prog_name="ostraka")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_commands_name_an_app_that_is_not_there(write):
    write()
    for command in ("train", "compare"):
        result = CliRunner().invoke(ostraka, [command, "--app", "nowhere:app"])
        assert result.exit_code != 0
        assert "there is no module nowhere" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_a_run_imports_it_in_clients_and_in_neither_enclave_nor_worker(
    write, tmp_path, monkeypatch
):
    """Over the real services, in processes that note down each import of the app."""
    monkeypatch.setenv("IMPORTED", str(tmp_path / "imported"))
    small = ("--clients", 5, "--byzantine", 1, "--rounds", 2, "--processes", 1)
    name, out = f"{write()}:app", tmp_path / "run"
    figures = run("train", "--app", name, *small, "--baseline", "--out", out, "--json")
    assert figures["accuracy"] > 0.4
    recorded = json.loads((out / "experiment.json").read_text())
    assert (recorded["app"], recorded["holdings"]) == (name, [])
    assert recorded["command"].endswith(f"--app {name}")
    assert "--dataset" not in recorded["command"]
    assert f"the app's model on {name}" in (out / "report.html").read_text().replace("&#x27;", "'")
    importers = (tmp_path / "imported").read_text().splitlines()
    assert any("ostraka_lab.client" in each for each in importers)
    assert any("ostraka_lab.baselines" in each for each in importers)
    assert not [each for each in importers if "ostraka.enclave" in each or " worker " in each]
    assert len(list((out / "logs").iterdir())) == 5  # enclave, two workers, clients, baseline


@pytest.mark.slow
def test_the_example_is_compared(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    small = ("--clients", 5, "--byzantine", 1, "--rounds", 3)
    asked = ("--attack", "sign-flip", "--defence", "plain", "--defence", "caf")
    found = run(
        "compare", "--app", "own_task:app", *asked, *small, "--out", tmp_path / "c", "--json"
    )
    accuracy = {each["defence"]: each["accuracy"] for each in found["results"]}
    assert accuracy["caf"] > 0.9
    assert accuracy["plain"] < 0.7
    assert "--app own_task:app" in found["command"]
    assert "--partition" not in found["command"]
