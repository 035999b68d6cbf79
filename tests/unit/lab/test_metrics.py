import json
import math
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from ostraka.errors import ConfigError
from ostraka_lab import metrics
from ostraka_lab.metrics import BaselineMetrics, Metrics, RoundMetrics


def row(number, **changes):
    fields: dict[str, Any] = {
        "accuracy": 0.5,
        "loss": 1.25,
        "attack_success": 0.125,
        "selected": (1, 2, 4),
        "dropped": (3,),
        "rejected": {5: "holds a NaN or an infinity"},
        "absent": (6,),
        "byzantine_selected": 1,
        "attackers_share": 0.25,
        "failure": "too few",
        "stages_s": {"train": 2.0, "send": 0.5},
        "wall_s": 2.5,
        "start_s": 4.5,
    }
    return RoundMetrics(round=number, **(fields | changes))


def written(folder, rows, baseline=(), **options):
    out = Metrics(folder, **options)
    for each in rows:
        out.write(each)
    for each in baseline:
        out.baseline(each)
    out.close()


def test_a_row_survives_json():
    assert RoundMetrics.from_json(json.loads(json.dumps(row(3).to_json()))) == row(3)
    plain = BaselineMetrics(2, 0.1, None, 0.9)
    assert BaselineMetrics.from_json(json.loads(json.dumps(plain.to_json()))) == plain


def test_the_schema_is_the_one_that_others_read():
    assert row(1).to_json() == {
        "round": 1,
        "accuracy": 0.5,
        "loss": 1.25,
        "attack_success": 0.125,
        "selected": [1, 2, 4],
        "dropped": [3],
        "rejected": {"5": "holds a NaN or an infinity"},
        "absent": [6],
        "byzantine_selected": 1,
        "attackers_share": 0.25,
        "failure": "too few",
        "stages_s": {"train": 2.0, "send": 0.5},
        "wall_s": 2.5,
        "start_s": 4.5,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null(tmp_path, value):
    bad = row(1, accuracy=value, loss=value, stages_s={"train": value}, wall_s=value)
    written(tmp_path, [bad], [BaselineMetrics(1, value, value)])
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["accuracy"], line["loss"], line["wall_s"]) == (None, None, None)
    assert line["stages_s"] == {"train": None}
    assert metrics.read(tmp_path)[0].stages_s == {"train": 0.0}
    assert metrics.read_baseline(tmp_path) == [BaselineMetrics(1)]


def test_rows_are_read_back_in_order(tmp_path):
    written(tmp_path, [row(1), row(2)], [BaselineMetrics(1, 0.1), BaselineMetrics(2, 0.2)])
    assert metrics.read(tmp_path) == [row(1), row(2)]
    assert metrics.read_baseline(tmp_path) == [BaselineMetrics(1, 0.1), BaselineMetrics(2, 0.2)]


def test_a_line_is_in_its_file_before_the_writer_is_closed(tmp_path):
    out = Metrics(tmp_path)
    out.write(row(1))
    assert metrics.read(tmp_path) == [row(1)]
    out.close()


def test_a_run_without_plain_averaging_has_no_file_of_it(tmp_path):
    written(tmp_path, [row(1)])
    assert not (tmp_path / "baseline.jsonl").exists()
    assert metrics.read_baseline(tmp_path) == []


def test_a_folder_without_metrics_has_no_rounds(tmp_path):
    assert metrics.read(tmp_path) == []


@pytest.mark.parametrize("left", [1, 20, 100])
def test_a_torn_last_line_is_skipped(tmp_path, left):
    written(tmp_path, [row(1), row(2)])
    path = tmp_path / "metrics.jsonl"
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + second[:left])
    assert metrics.read(tmp_path) == [row(1)]


def test_a_last_line_without_its_end_counts_if_it_is_whole(tmp_path):
    written(tmp_path, [row(1), row(2)])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert metrics.read(tmp_path) == [row(1), row(2)]
    written(tmp_path, [row(3)], first=3)
    assert metrics.read(tmp_path) == [row(1), row(2), row(3)]


DAMAGES = {
    "no JSON": b"{]\n",
    "no object": b"[1]\n",
    "no round": b'{"accuracy": 0.5}\n',
    "a round that is no number": b'{"round": "first"}\n',
    "clients that are no numbers": b'{"round": 1, "selected": ["a"]}\n',
    "rejections that are a list": b'{"round": 1, "rejected": [1]}\n',
    "an accuracy that is a list": b'{"round": 1, "accuracy": []}\n',
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_elsewhere_is_named(tmp_path, what):
    written(tmp_path, [row(1)])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + DAMAGES[what] + path.read_bytes())
    with pytest.raises(ConfigError, match=r"metrics\.jsonl is damaged: line 2 "):
        metrics.read(tmp_path)


def test_a_run_that_goes_on_drops_what_it_runs_again(tmp_path):
    rows = [row(number) for number in (1, 2, 3, 4)]
    plain = [BaselineMetrics(number) for number in (1, 2, 3, 4)]
    written(tmp_path, rows, plain)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 5, "acc')
    again = row(3, accuracy=0.75)
    written(tmp_path, [again], first=3)
    assert metrics.read(tmp_path) == [row(1), row(2), again]
    assert metrics.read_baseline(tmp_path) == plain[:2]


def test_plain_averaging_may_go_on_elsewhere(tmp_path):
    plain = [BaselineMetrics(number) for number in (1, 2, 3, 4)]
    written(tmp_path, [row(1)], plain)
    written(tmp_path, [], first=2, first_baseline=5)
    assert metrics.read_baseline(tmp_path) == plain


def test_a_run_that_begins_again_begins_with_nothing(tmp_path):
    written(tmp_path, [row(1), row(2)])
    written(tmp_path, [row(1, accuracy=0.9)])
    assert metrics.read(tmp_path) == [row(1, accuracy=0.9)]


def events(path):
    """What TensorBoard would read: each record is length (8), checksum (4), bytes, checksum (4)."""
    data, found = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def scalars(folder):
    return {
        (value.tag, event.step): value.simple_value
        for path in sorted((folder / "tensorboard").iterdir())
        for event in events(path)
        for value in event.summary.value
    }


def test_tensorboard_sees_the_same(tmp_path):
    written(tmp_path, [row(1), row(2, loss=math.nan)], [BaselineMetrics(1, 0.25)])
    seen = scalars(tmp_path)
    assert seen["accuracy", 1] == 0.5
    assert seen["loss", 1] == 1.25
    assert ("loss", 2) not in seen
    assert seen["byzantine_selected", 2] == 1
    assert seen["attack_success", 2] == 0.125
    assert seen["stages/train", 1] == 2.0
    assert seen["stages/send", 2] == 0.5
    assert seen["baseline/accuracy", 1] == 0.25


def test_tensorboard_is_told_what_is_run_again(tmp_path):
    written(tmp_path, [row(1), row(2), row(3)])
    written(tmp_path, [row(2, accuracy=0.75)], first=2)
    files = sorted((tmp_path / "tensorboard").iterdir())
    assert len(files) == 2
    started = [
        event.step for path in files for event in events(path) if event.HasField("session_log")
    ]
    assert started == [2]
