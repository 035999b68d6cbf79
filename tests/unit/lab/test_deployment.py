"""A federation on this machine: its settings, which are signed, and where it is by its logs."""

from datetime import datetime

import pytest

from ostraka import federation_file
from ostraka.cli.federation_folder import Plan
from ostraka.errors import ConfigError, LocalProtocolError, RoundFailed
from ostraka_lab.children import Children
from ostraka_lab.deployment import Deployment, Progress, found

PLAN = Plan(clients=5, f=1, dimension=50)


def test_settings_are_in_force_and_signed(tmp_path):
    address = found(tmp_path / "demo", PLAN, count=3, quorum=5, distances="inside")
    file = federation_file.load(tmp_path / "demo" / "federation.toml")
    assert (file.rounds.count, file.quorum) == (3, 5)
    assert file.terms.distances == "inside"
    assert file.terms.disclose_selection
    assert file.enclave.listen == address
    charter = federation_file.load_charter(federation_file.charter_path(file.path))
    federation_file.require_signed(file, charter)


def test_shards_have_what_was_signed_and_addresses_of_their_own(tmp_path):
    plan = Plan(clients=5, f=1, dimension=40_000, shards=2)
    address = found(tmp_path / "demo", plan, count=3, sketch=16_384)
    with Children(tmp_path / "logs") as children:
        addresses = Deployment(tmp_path / "demo", address, children).shards
    assert len({address, *addresses}) == 3
    signed = (tmp_path / "demo" / "federation.charter").read_bytes()
    for number in range(2):
        folder = tmp_path / "demo" / f"shard-{number}"
        file = federation_file.load(folder / "federation.toml")
        assert (file.rounds.count, file.terms.sketch) == (3, 16_384)
        assert file.enclave.listen == addresses[number]
        assert (folder / "federation.charter").read_bytes() == signed


def test_an_enclave_without_shards_has_none(tmp_path):
    address = found(tmp_path / "demo", PLAN)
    with Children(tmp_path / "logs") as children:
        assert Deployment(tmp_path / "demo", address, children).shards == []


def test_a_setting_that_does_not_exist_is_our_mistake(tmp_path):
    with pytest.raises(LocalProtocolError, match="0 lines for 'colour'"):
        found(tmp_path / "demo", PLAN, colour="red")


def test_what_is_in_a_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is not empty"):
        found(tmp_path, PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_quorum_is_that_of_the_signed_terms(tmp_path):
    address = found(tmp_path / "demo", Plan(clients=9, f=3, dimension=50))
    with Children(tmp_path / "logs") as children:
        assert Deployment(tmp_path / "demo", address, children).quorum == 7


SECONDS = iter(range(10_000))
TIMED = {"measure_s": 0.5, "average_s": 0.2, "hold_s": 0.01, "confirm_s": 0.3, "publish_s": 0.1}
CLIENTS = tuple(f"client-{i}" for i in range(1, 6))


def event(name, **fields):
    second = next(SECONDS)
    time = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000+00:00"
    return {"event": name, "simulated": True, "time": time, **fields}


def published(number, kept=4):
    return event("RoundPublished", number=number, participants=5, kept=kept)


def trained(client, number):
    return event("Trained", client=client, round=number, loss=1.0)


def test_a_run_as_it_is_told():
    progress = Progress(CLIENTS, workers=1, rounds=2)
    story = [
        ("enclave", event("ServiceStarted", next_round=1), "starting the enclave and 1 workers"),
        ("enclave", event("WorkerJoined", worker="worker-1"), "starting 5 clients"),
        ("enclave", event("RoundOpened", number=1), "starting 5 clients"),
        ("client", trained("client-1", 1), "round 1 of 2: 1 trained, 0 of 5 in"),
        (
            "enclave",
            event("UploadCompleted", client="client-1"),
            "round 1 of 2: 1 trained, 1 of 5 in",
        ),
        (
            "enclave",
            event("UploadRefused", client="client-4", why="a NaN"),
            "round 1 of 2: 1 trained, 2 of 5 in, waiting for client-2, client-3, client-5",
        ),
        (
            "client",
            event("ClientFailed", client="client-5", why="no memory"),
            "round 1 of 2: 1 trained, 2 of 5 in, waiting for client-2, client-3",
        ),
        (
            "enclave",
            event("RoundClosed", number=1, missing=["client-5"]),
            "round 1 of 2: measuring",
        ),
        (
            "enclave",
            event("RoundProposed", number=1, needed=4),
            "round 1 of 2: waiting for 4 clients to confirm",
        ),
        (
            "enclave",
            event("ConfirmationsAwaited", number=1, missing=1, silent=["client-5"]),
            "round 1 of 2: 1 confirmations missing, waiting for client-5",
        ),
        (
            "enclave",
            event("RoundTimed", number=1, **TIMED),
            "round 1 of 2: 1 confirmations missing, waiting for client-5",
        ),
        ("enclave", published(1), "round 2 of 2: 0 trained, 0 of 5 in"),
        ("enclave", published(2), "finishing"),
    ]
    for who, said, shown in story:
        getattr(progress, f"hear_{who}")(said)
        assert str(progress) == shown, said
    first = progress.timed(1)
    assert first.missing == ("client-5",)
    in_the_enclave = {name.removesuffix("_s"): seconds for name, seconds in TIMED.items()}
    assert first.stages == {"train": 1, "send": 4} | in_the_enclave
    assert first.wall == 9
    assert progress.gone == {"client-5": "no memory"}


def test_start_up_is_no_part_of_the_first_round():
    """The round is open before the clients have started; later starts change nothing."""
    progress = Progress(CLIENTS, workers=0, rounds=5, began=0.0)
    begin = next(SECONDS)
    progress.hear_enclave(event("ServiceStarted", next_round=2))
    progress.hear_enclave(event("RoundOpened", number=2))
    progress.hear_client(event("ClientStarted", client="client-1", round=2))
    progress.hear_client(trained("client-1", 2))
    progress.hear_client(event("ClientStarted", client="client-2", round=2))
    progress.hear_client(trained("client-2", 2))
    progress.hear_enclave(event("RoundClosed", number=2, missing=[]))
    progress.hear_enclave(published(2))
    progress.hear_enclave(event("RoundOpened", number=3))
    progress.hear_client(event("ClientStarted", client="client-3", round=3))
    progress.hear_client(trained("client-3", 3))
    progress.hear_enclave(event("RoundClosed", number=3, missing=[]))
    progress.hear_enclave(published(3))
    new_year = datetime.fromisoformat("2026-01-01T00:00:00+00:00").timestamp()
    assert progress.start_up(2) == new_year + begin + 5
    assert progress.timed(2).stages == {"train": 1, "send": 1}
    assert progress.timed(2).wall == 3 - 1 + 1
    assert progress.start_up(3) is None
    assert progress.timed(3).stages == {"train": 2, "send": 1}


def test_a_client_that_starts_after_the_round_is_closed_leaves_no_time_below_zero():
    progress = Progress(CLIENTS, workers=0, rounds=1)
    progress.hear_enclave(event("RoundOpened", number=1))
    progress.hear_enclave(event("RoundClosed", number=1, missing=["client-1"]))
    progress.hear_client(event("ClientStarted", client="client-1", round=1))
    progress.hear_enclave(published(1))
    assert progress.timed(1).stages == {"train": 0, "send": 0}
    assert progress.timed(1).wall == 2


def test_a_run_that_goes_on_begins_where_it_was():
    progress = Progress(CLIENTS, workers=0, rounds=9)
    progress.hear_enclave(event("ServiceStarted", next_round=4))
    assert progress.published == 3
    assert progress.ready


def test_of_a_round_that_nobody_listened_to_nothing_is_said():
    unheard = Progress(CLIENTS, 0, 1).timed(1)
    assert unheard.stages == {}
    assert unheard.wall is None


def test_a_round_that_is_given_up_again_and_again_ends_the_run():
    progress = Progress(CLIENTS, workers=0, rounds=1)
    for _ in range(2):
        progress.hear_enclave(event("RoundSkipped", number=3, why="no quorum"))
    with pytest.raises(RoundFailed, match="round 3 was given up 3 times: no quorum"):
        progress.hear_enclave(event("RoundSkipped", number=3, why="no quorum"))


def test_a_round_that_is_published_after_all_makes_up_for_it():
    progress = Progress(CLIENTS, workers=0, rounds=9)
    for number in range(1, 5):
        progress.hear_enclave(event("RoundSkipped", number=number, why="no quorum"))
        progress.hear_enclave(event("RoundSkipped", number=number, why="no quorum"))
        progress.hear_enclave(published(number))
    assert progress.published == 4


def test_null_steps_in_a_row_end_the_run():
    progress = Progress(CLIENTS, workers=0, rounds=9)
    numbers = iter(range(1, 9))

    def null_step():
        number = next(numbers)
        progress.hear_enclave(event("NullStep", number=number, why="too far apart"))
        progress.hear_enclave(published(number, kept=0))

    null_step()
    null_step()
    progress.hear_enclave(published(next(numbers)))
    null_step()
    null_step()
    with pytest.raises(RoundFailed, match="the last 3 rounds changed nothing: too far apart"):
        null_step()
