import inspect

import pytest

from ostraka import errors
from ostraka.errors import (
    ConfigError,
    Fork,
    LeakyMasking,
    OpenError,
    OstrakaError,
    Rejection,
    UpdateRejected,
    WorkerError,
    WorkerLied,
    printable,
)


def drawn():
    """The tree in the module's docstring, as {name: parent}."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
        name = line.lstrip("│├└─ ").split(" ")[0]
        if inspect.isclass(getattr(errors, name, None)):
            path = [*path[:depth], name]
            parents[name] = path[-2] if depth else None
    return parents


def test_the_tree_is_as_it_is_drawn():
    defined = {
        name: each
        for name, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, OstrakaError)
    }
    tree = drawn()
    assert set(tree) == set(defined)
    for name, parent in tree.items():
        bases = [base.__name__ for base in defined[name].__bases__]
        assert bases[0] == (parent or "Exception"), name


def test_a_config_error_is_a_value_error():
    assert issubclass(ConfigError, ValueError)


def test_a_rejection_names_the_client_and_the_reason():
    error = UpdateRejected("alice", Rejection.NOT_FINITE)
    assert (error.client, error.reason) == ("alice", Rejection.NOT_FINITE)
    assert str(error) == "update of client 'alice' rejected: holds a NaN or an infinity"


def test_a_worker_error_names_the_worker():
    error = WorkerError("w1", "sent nothing")
    assert error.worker == "w1"
    assert str(error) == "worker 'w1' sent nothing"


def test_a_lie_names_all_who_told_it():
    error = WorkerLied(("w1", "w2"))
    assert error.workers == ("w1", "w2")
    assert isinstance(error, WorkerError)


def test_a_fork_holds_both_receipts():
    held, other = object(), object()
    error = Fork(held, other)
    assert error.held is held
    assert error.other is other


def test_an_open_error_gives_no_cause():
    assert "altered, misplaced, or not from an enrolled party" in str(OpenError("tile"))


@pytest.mark.parametrize("reason", Rejection)
def test_what_the_host_can_cause_is_not_provable(reason):
    """It can drop, delay, repeat and alter what it carries, and it cannot sign."""
    host = {
        Rejection.REVOKED,
        Rejection.FOREIGN_ROUND,
        Rejection.FOREIGN_FEDERATION,
        Rejection.FOREIGN_KEY,
        Rejection.DUPLICATE,
        Rejection.LATE,
        Rejection.INCOMPLETE,
        Rejection.CHANGED,
    }
    assert reason.provable == (reason not in host)


def test_leaky_masking_is_a_warning_and_no_error():
    assert issubclass(LeakyMasking, UserWarning)
    assert not issubclass(LeakyMasking, OstrakaError)


@pytest.mark.parametrize(
    ("text", "longest", "shown"),
    [
        ("plain \u00fc", None, "plain \u00fc"),
        ("a\n\x1b[2J\u202e", None, "a\\n\\x1b[2J\\u202e"),
        ("\udc80", None, "\\udc80"),
        ("\x00" * 100, 10, "\\x00\\x00\\x"),
        ("abc", 2, "ab"),
    ],
)
def test_what_a_peer_says_is_escaped_and_cut(text, longest, shown):
    assert printable(text, longest) == shown
    assert shown.isprintable()
