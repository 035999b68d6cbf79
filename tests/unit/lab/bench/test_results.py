"""A folder of results, what repeated runs say, and parts of a benchmark that was stopped."""

import json
import math

import numpy as np
import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench import machine, results
from ostraka_lab.bench.results import Parts, noise, spread


def test_what_is_saved_is_found_again_by_its_name(tmp_path):
    folder = tmp_path / "new" / "folder"
    results.save(folder, "peers", {"clients": 8})
    results.save(folder, "peers", {"clients": 9})
    results.save(folder, "scale", {"cells": []})
    found = results.load(folder)
    assert list(found) == ["peers", "scale"]
    assert found["peers"]["clients"] == 9
    assert found["peers"]["measured"].endswith("UTC")


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"layout": 0}'])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    (tmp_path / "paper.json").write_text(text)
    with pytest.raises(ConfigError, match=r"paper\.json is not a"):
        results.load(tmp_path)


def test_spread_by_hand():
    assert spread([2.0, 1.0, 4.0]) == 1.5
    assert spread([3.0]) == 0
    assert spread([0.0, 0.0]) == 0


@pytest.mark.parametrize("runs", [3, 5, 9])
def test_noise_is_the_standard_error_of_a_median(runs):
    rng = np.random.default_rng(0)
    drawn = 1 + 0.01 * rng.standard_normal((4000, runs))
    told = np.mean([noise(spread(row), runs) for row in drawn.tolist()])
    assert told == pytest.approx(np.median(drawn, axis=1).std(), rel=0.15)


def test_one_run_says_nothing_of_noise():
    assert noise(0.0, 1) == math.inf


OPTIONS = {"clients": (8, 16), "repeat": 3}


@pytest.fixture
def calls(monkeypatch):
    seen = []

    def run_module(module, arguments, begin):
        seen.append((module, *arguments))
        return {"turn": len(seen)}

    monkeypatch.setattr(results, "run_module", run_module)
    return seen


@pytest.fixture
def told():
    return []


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "paper.parts.jsonl"


@pytest.fixture
def begun(path, told, calls):
    return lambda options=OPTIONS, **more: Parts(path, options, told.append, **more)


def measured(some, *names):
    return [some.measure("a.module", [name], lambda *_: None).figures["turn"] for name in names]


def test_a_part_is_measured_once_over_all_runs(begun, told, calls):
    first = begun()
    assert measured(first, "a", "b") == [1, 2]
    assert first.kept == 2
    assert told == []
    second = begun()
    assert measured(second, "a", "b", "c") == [1, 2, 3]
    assert second.kept == 3
    assert measured(begun(), "c", "b", "a") == [3, 2, 1]
    assert calls == [("a.module", name) for name in "abc"]
    assert told[0].startswith("resuming with 2 parts measured before (begun 20")
    assert told[0].endswith("UTC); --fresh starts over")
    assert len(told) == 2


def test_what_is_asked_for_twice_is_measured_twice(begun):
    assert measured(begun(), "a", "a") == [1, 2]
    assert measured(begun(), "a", "a", "a") == [1, 2, 3]


def test_another_module_with_the_same_arguments_is_another_part(begun, calls):
    measured(begun(), "a")
    begun().measure("b.module", ["a"], lambda *_: None)
    assert calls == [("a.module", "a"), ("b.module", "a")]


def test_seconds_are_kept(begun, monkeypatch):
    clock = iter([10.0, 17.5])
    monkeypatch.setattr("ostraka_lab.bench.results.time.monotonic", lambda: next(clock))
    begun().measure("a.module", [], lambda *_: None)
    found = begun().take("a.module", [])
    assert found is not None
    assert found.seconds == 7.5


def test_a_failure_is_no_part(begun, monkeypatch, path):
    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "run_module", fails)
    with pytest.raises(KeyboardInterrupt):
        measured(begun(), "a")
    assert not path.exists()


@pytest.mark.parametrize("torn", ['{"module": "a.mod', "{", '{"module": "a.module"}', "\0" * 9999])
def test_a_line_that_was_being_written_does_not_count(begun, told, path, torn):
    measured(begun(), "a", "b")
    with path.open("a") as file:
        file.write(torn)
    assert measured(begun(), "a", "b", "c") == [1, 2, 3]
    assert path.read_bytes().endswith(b"}\n")
    assert measured(begun(), "a", "b", "c") == [1, 2, 3]
    assert [text[:21] for text in told] == ["resuming with 2 parts", "resuming with 3 parts"]


def test_fresh_begins_anew(begun, told):
    measured(begun(), "a")
    assert measured(begun(fresh=True), "a") == [2]
    assert measured(begun(), "a") == [2]
    assert len(told) == 1


def of_other_options(begun, monkeypatch):
    return begun({"clients": (8, 16), "repeat": 2})


def of_another_machine(begun, monkeypatch):
    other = machine.describe(threads=1) | {"processor": "another"}
    monkeypatch.setattr(machine, "describe", lambda threads: other)
    return begun()


def of_other_code(begun, monkeypatch):
    monkeypatch.setattr(results, "_code", lambda: "another")
    return begun()


OTHERS = {"options": of_other_options, "machine": of_another_machine, "code": of_other_code}


@pytest.mark.parametrize("what", OTHERS)
def test_parts_of_something_else_are_not_used(begun, told, path, monkeypatch, what):
    measured(begun(), "a", "b")
    kept = path.read_bytes()
    new = OTHERS[what](begun, monkeypatch)
    assert told == [f"starting over: {path}: 2 parts with different {what}"]
    assert path.read_bytes() == kept  # until there is something better
    assert measured(new, "a") == [3]
    assert new.kept == 1
    assert measured(OTHERS[what](begun, monkeypatch), "a") == [3]


def test_the_load_of_the_moment_is_no_other_machine(begun, monkeypatch):
    measured(begun(), "a")
    busy = machine.describe(threads=1) | {"load": 99.0, "available_gib": 0.1}
    monkeypatch.setattr(machine, "describe", lambda threads: busy)
    assert measured(begun(), "a") == [1]


def test_code_is_what_the_files_say(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_PACKAGES", (tmp_path,))
    seen = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", ""), ("c/d.py", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        seen.add(results._code())
    (tmp_path / "a.pyc").write_text("made of a.py")
    seen.add(results._code())
    assert len(seen) == 4


HEADER = {"layout": 1, "begun": "today", "of": {}}
PART = {"module": "a.module", "arguments": ["a"], "seconds": 1.0, "figures": {}}
GARBAGE = {
    "nothing": "",
    "no JSON": "hello\n",
    "a list": "[]\n",
    "a number": "7\n",
    "nothing known": "null\n",
    "brackets without end": "[" * 100_000 + "\n",
    "no text": "\udcff\udcfe\n",
    "a header of another layout": json.dumps(HEADER | {"layout": 2}) + "\n",
    "a header that belongs to a number": json.dumps(HEADER | {"of": 7}) + "\n",
    "a header without a date": json.dumps({"layout": 1, "of": {}}) + "\n",
    "a result": json.dumps({"layout": 1, "measured": "today"}, indent=1) + "\n",
    "a part in the place of the header": json.dumps(PART) + "\n",
} | {
    f"a part with {name}": f"{json.dumps(HEADER)}\n{json.dumps(part)}\n"
    for name, part in {
        "no name": {key: value for key, value in PART.items() if key != "module"},
        "no arguments": PART | {"arguments": None},
        "no seconds": PART | {"seconds": "some"},
        "more seconds than there are": PART | {"seconds": 10**400},
        "figures without names": PART | {"figures": 7},
        "nothing at all": [],
    }.items()
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_file_of_parts_is_told_and_replaced(begun, told, path, content):
    path.parent.mkdir()
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert measured(begun(), "a") == [1]
    assert told == [f"starting over: {path}: these are not parts of this version's benchmarks"]
    assert measured(begun(), "a") == [1]


def test_garbage_in_the_midst_of_parts_is_not_guessed_at(begun, told, path):
    measured(begun(), "a", "b")
    header, first, second = path.read_text().splitlines()
    path.write_text(f"{header}\n{first[:-5]}\n{second}\n")
    assert measured(begun(), "a", "b") == [3, 4]
    assert "these are not parts of this version" in told[0]


def test_a_folder_that_cannot_be_written_stops_nothing(begun, told, path):
    path.parent.write_text("in the way")
    some = begun()
    assert measured(some, "a", "b") == [1, 2]
    assert some.kept == 0
    assert len(told) == 1
    assert told[0].startswith("parts measured from now on are lost if this is stopped: ")


def test_a_file_that_cannot_be_read_stops_nothing(begun, told, path):
    path.mkdir(parents=True)
    assert measured(begun(), "a") == [1]
    assert told[0].startswith(f"starting over: {path}: ")


def test_a_disk_that_has_room_again_is_used_again(begun, path):
    some = begun()
    measured(some, "a")
    aside = path.rename(path.with_suffix(".aside"))
    measured(some, "b")
    aside.rename(path)
    measured(some, "c")
    assert some.kept == 2
    assert measured(begun(), "a", "c") == [1, 3]


def test_a_benchmark_that_is_done_leaves_nothing(begun, path):
    some = begun()
    some.clear()
    measured(some, "a")
    some.clear()
    assert not path.exists()


def test_a_second_run_in_the_same_folder_is_noticed(begun, told):
    first, second = begun(), begun()
    measured(first, "a", "b", "c")
    measured(second, "a")
    measured(first, "d")
    (said,) = told
    assert said.startswith("parts measured from now on are lost if this is stopped: ")
    assert said.endswith("another run writes to the same folder")
    assert measured(begun(), "a") == [4]
