"""`ostraka worker`: keys, mistakes, and how many threads it takes."""

import json
import os
import signal
import sys
import threading
import tomllib

import pytest
from typer.testing import CliRunner

from ostraka.cli import app, worker
from ostraka.cli.worker import stopped_by_signals
from ostraka.files import read_identity, write_identity


def run(*arguments):
    return CliRunner().invoke(app, ["worker", *map(str, arguments)], prog_name="ostraka")


def test_enrolling_makes_a_key_and_prints_the_lines_for_the_operator(tmp_path):
    key = tmp_path / "worker-1.key"
    result = run("enrol", "--name", "worker-1", "--out", key)
    assert result.exit_code == 0
    expected = {"name": "worker-1", "key": read_identity(key).public.hex()}
    assert tomllib.loads(result.stdout) == {"worker": [expected]}
    again = run("enrol", "--name", "worker-1", "--out", key, "--json")
    assert again.exit_code == 2
    assert read_identity(key).public.hex() == expected["key"]


def test_enrolling_gives_figures_for_programs(tmp_path):
    key = tmp_path / "worker-1.key"
    result = run("enrol", "--name", "worker-1", "--out", key, "--json")
    assert json.loads(result.stdout.splitlines()[-1])["file"] == str(key)


@pytest.fixture
def key(tmp_path):
    write_identity(tmp_path / "me.key", "me")
    return tmp_path / "me.key"


MISTAKES = {
    "an address without a port": (["--enclave", "localhost"], "HOST:PORT"),
    "a port that does not exist": (["--enclave", "localhost:99999"], "a port from 1 to 65535"),
    "a key file that is not there": (["--key", "nope.key"], "there is no key file nope.key: "),
    "a key that is no hex": (["--receipt-key", "xyz"], "64 hex digits"),
    "a key that is too short": (["--receipt-key", "00"], "64 hex digits"),
    "a policy that is not there": (["--policy", "absent.toml"], "absent.toml"),
    "a device that is not there": (["--device", "abacus"], "abacus"),
    "certificates that are not there": (["--tls-ca", "absent.pem"], "absent.pem"),
    "no threads": (["--threads", "0"], "--threads"),
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_explained_and_exit_with_2(key, mistake, message):
    usual = ["--enclave", "127.0.0.1:1", "--name", "me", "--key", key, "--device", "cpu"]
    known = ["--receipt-key", "00" * 32]
    result = run("run", *usual, *known, *mistake)
    assert result.exit_code == 2
    assert message in result.stderr


def test_without_a_policy_or_a_key_no_enclave_is_served_and_both_ways_are_told(key):
    result = run("run", "--enclave", "127.0.0.1:1", "--name", "me", "--key", key)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "--policy" in said
    assert "--receipt-key" in said


def test_a_key_that_others_can_read_is_refused(key):
    key.chmod(0o644)
    result = run("run", "--enclave", "127.0.0.1:1", "--name", "me", "--key", key)
    assert result.exit_code == 2
    assert "chmod 600" in result.stderr


def test_a_number_of_threads_starts_the_program_anew_and_once(monkeypatch):
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    worker._limit_threads(None)
    assert started == []
    worker._limit_threads(3)
    ((program, arguments, environment),) = started
    assert (program, arguments) == (sys.executable, sys.orig_argv)
    assert environment["OPENBLAS_NUM_THREADS"] == environment["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr(os, "environ", environment)
    worker._limit_threads(3)
    assert len(started) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_from_a_thread_of_its_own(number):
    before = signal.getsignal(number)
    stopped, stoppers = threading.Event(), []

    def stop():
        stoppers.append(threading.current_thread().name)
        stopped.set()

    with stopped_by_signals(stop) as caught:
        signal.raise_signal(number)
        assert stopped.wait(30)
    assert caught == [number]
    assert stoppers == ["signals"]
    assert signal.getsignal(number) is before


def test_what_ends_by_itself_leaves_the_signals_as_they_were():
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signals(lambda: None) as caught:
        pass
    assert caught == []
    assert signal.getsignal(signal.SIGTERM) is before
