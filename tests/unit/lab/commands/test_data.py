"""`ostraka data`: what is there, what is fetched, and what is said about it."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka_lab.commands import data as command
from ostraka_lab.data import DATASETS
from ostraka_lab.data.catalogue import FETCHED, Entry, Kept, Package, Remote

CONTENT = b"all there is"


def assemble(found):
    yield "file.bin", found["file.bin"].read_bytes()


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A data set of one file, that nobody has, and an empty cache for it."""
    monkeypatch.setenv("OSTRAKA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    md5, sha256 = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()
    entry = Entry(
        "mnist",
        read=FETCHED["mnist"].read,
        files=(Kept("file.bin", len(CONTENT), md5, sha256),),
        official=(Remote("http://127.0.0.1:9/file.bin", len(CONTENT), md5),),
        mirror=Package("npm", "one-file", "1.0.0"),
        parts={"file.bin": 100},
        assemble=assemble,
    )
    monkeypatch.setitem(DATASETS, "mnist", entry)
    return tmp_path / "cache" / "data" / "mnist"


@pytest.fixture
def given(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "file.bin").write_bytes(CONTENT)
    return tmp_path / "given"


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], prog_name="ostraka")


def figures(result):
    return json.loads(result.stdout.splitlines()[-1])


def listed(name):
    (found,) = (
        each for each in figures(run("list", "--json"))["datasets"] if each["dataset"] == name
    )
    return found


def test_files_at_hand_are_put_into_the_cache(cached, given):
    result = run("get", "mnist", "--from", given)
    assert result.exit_code == 0
    assert str(cached) in result.stdout
    assert (cached / "file.bin").read_bytes() == CONTENT


def test_the_figures_for_programs_are_one_object(cached, given):
    result = run("get", "mnist", "--from", given, "--json")
    assert len(result.stdout.splitlines()) == 1
    assert figures(result) == {
        "dataset": "mnist",
        "folder": str(cached),
        "bytes": len(CONTENT),
        "source": str(given),
        "md5": {"file.bin": hashlib.md5(CONTENT).hexdigest()},
    }
    assert figures(run("get", "mnist", "--json"))["source"] is None


@pytest.mark.usefixtures("cached")
def test_if_nobody_has_it_both_reasons_are_told():
    result = run("get", "mnist")
    assert result.exit_code == 1
    assert "127.0.0.1:9/file.bin cannot be reached" in result.stderr
    assert "trying npm one-file 1.0.0" in result.stderr
    assert "npm is not installed" in result.stderr
    assert "ostraka data get mnist --from PATH" in result.stderr
    assert result.stdout == ""


MISTAKES = {
    "an unknown name": (["get", "fashon-mnist"], "did you mean fashion-mnist? known: cifar10, "),
    "files that are not there": (["get", "mnist", "--from", "nowhere"], "nowhere does not exist"),
}


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_explained_and_exit_with_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.usefixtures("cached")
def test_other_files_are_refused(given):
    (given / "file.bin").write_bytes(b"something")
    result = run("get", "mnist", "--from", given)
    assert result.exit_code == 2
    assert "file.bin is not the official file" in result.stderr


def test_digits_need_nothing():
    result = run("get", "digits", "--json")
    assert result.exit_code == 0
    assert figures(result)["source"] == "scikit-learn"


def test_an_interruption_says_how_to_go_on(cached, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "fetch", interrupted)
    result = run("get", "mnist")
    assert result.exit_code == 130
    assert "the same command resumes" in result.stderr


def test_the_list_tells_what_is_there_and_sound(cached, given):
    assert listed("mnist")["state"] == "not fetched"
    (cached / "download").mkdir(parents=True)
    (cached / "download" / "file.bin.part").write_bytes(b"all")
    assert (listed("mnist")["state"], listed("mnist")["bytes"]) == ("partly downloaded", 3)
    run("get", "mnist", "--from", given)
    assert listed("mnist") == {
        "dataset": "mnist",
        "state": "ready",
        "ready": True,
        "bytes": len(CONTENT),
        "folder": str(cached),
    }
    assert listed("digits")["ready"]


def test_the_list_tells_what_is_damaged_and_what_to_run(cached):
    cached.mkdir(parents=True)
    (cached / "file.bin").write_bytes(b"all there was")
    assert not listed("mnist")["ready"]
    assert "file.bin has the wrong size" in listed("mnist")["state"]
    assert "run ostraka data get mnist" in " ".join(run("list").stdout.split())


def test_the_list_says_where(cached):
    assert f"In {cached.parent}." in run("list").stdout
