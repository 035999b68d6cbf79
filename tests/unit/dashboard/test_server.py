"""The page's server on real sockets: what it serves, to whom, and what it refuses."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.dashboard import page
from ostraka.dashboard.markup import Markup
from ostraka.dashboard.server import MOST_CONNECTIONS, Listener, Serving, is_loopback
from ostraka.dashboard.watching import Observer, View
from ostraka.errors import ConfigError

PATIENCE_S = 120.0
LISTENERS = 200
TOKEN = "0123456789abcdef0123"
PARTS = page.parts(View("fl:7420"))


@contextmanager
def serving(**options) -> Iterator[tuple[Serving, int]]:
    listener, ready = Listener.at("127.0.0.1:0"), threading.Event()
    server = Serving(listener, PARTS, **options)
    thread = threading.Thread(target=server.run, args=(ready.set,))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield server, listener.port
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def shared() -> Iterator[int]:
    """The port of a server that many tests ask."""
    with serving() as (_, port):
        yield port


@pytest.fixture(scope="module")
def locked() -> Iterator[int]:
    """The same of one that asks for a token."""
    with serving(token=TOKEN) as (server, port):
        server.publish(PARTS | {"title": Markup("a secret name")})
        yield port


def ask(port, request: bytes) -> tuple[int, dict[str, list[str]], bytes]:
    """The status, the headers and the body of the answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as near:
        near.sendall(request)
        near.shutdown(socket.SHUT_WR)
        answer = b""
        while more := near.recv(2**16):
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers.setdefault(name.lower(), []).append(value)
    return int(first.split()[1]), headers, body


def request(path="/", method="GET", *, host="localhost", body=b"", **headers) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_of_its_own():
    with serving() as (_, port):
        code, headers, body = ask(port, request())
        assert code == 200
        (policy,) = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        text = body.decode()
        assert not re.search(r"<script(?! src=\"static/)|<style|style=|\son\w+=|https?://", text)
        for name in re.findall(r'(?:src|href)="(static/[^"]+)"', text):
            assert ask(port, request(f"/{name}"))[0] == 200


STRANGE = {
    "another method": (request(method="DELETE"), 405),
    "a post": (request(method="POST", body=b"token=x"), 405),
    "a post to the events": (request("/events", "POST"), 405),
    "a put": (request("/static/page.js", "PUT", body=b"x"), 405),
    "an unknown page": (request("/admin"), 404),
    "a path upwards": (request("/static/../server.py"), 404),
    "an encoded path upwards": (request("/static/%2e%2e%2fserver.py"), 404),
    "a form that nobody asked for": (request("/login", "POST", body=b"token=x"), 405),
    "the name of a stranger's page": (request(host="evil.example"), 421),
    "a name that only begins right": (request(host="localhost.evil.example:80"), 421),
    "a user in the host": (request(host="localhost@evil.example"), 421),
    "no host": (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 400),
    "no host in HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", 421),
    "what is no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a head without end": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000, 400),
}


@pytest.mark.parametrize(("said", "code"), STRANGE.values(), ids=STRANGE.keys())
def test_what_strangers_send_is_refused(shared, said, code):
    assert ask(shared, said)[0] == code
    assert ask(shared, request())[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1:7430", "[::1]", "10.1.2.3", "LOCALHOST", "fl.example"])
def test_a_number_or_a_given_name_may_be_the_host(host):
    with serving(hosts=frozenset({"fl.example"})) as (_, port):
        assert ask(port, request(host=host))[0] == 200


@pytest.mark.parametrize("path", ["/", "/events", "/static/page.js", "/static/none", "/admin"])
@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Cookie": f"ostraka-dashboard-0={TOKEN}"},
        {"Cookie": "ostraka-dashboard-{port}="},
        {"Cookie": f"token={TOKEN}; ostraka-dashboard-{{port}}={TOKEN}"},
    ],
)
def test_without_the_token_nothing_is_served(locked, path, header):
    given = {name: value.format(port=locked) for name, value in header.items()}
    code, headers, body = ask(locked, request(path, **given))
    assert code == 401
    assert b"secret" not in body
    assert b"data-part" not in body
    assert "content-security-policy" in headers
    assert ask(locked, request(f"{path}?token={TOKEN}"))[0] == 401  # It would stay in logs.


def test_who_has_the_token_gets_in_by_a_header_or_by_the_form():
    with serving(token=TOKEN) as (_, port):
        assert ask(port, request(Authorization=f"Bearer {TOKEN}"))[0] == 200
        assert ask(port, request("/static/page.css"))[0] == 200  # The form has it, too.
        wrong, headers, body = ask(port, request("/login", "POST", body=b"token=wrong"))
        assert (wrong, headers.get("set-cookie")) == (403, None)
        assert b"This is not the token." in body
        long = b"token=" + b"x" * 100_000
        assert ask(port, request("/login", "POST", body=long))[0] == 413
        form = f"token={TOKEN}".encode()
        entered, headers, _ = ask(port, request("/login", "POST", body=form))
        (cookie,) = headers["set-cookie"]
        assert entered == 303
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert ask(port, request(Cookie=cookie.split(";")[0]))[0] == 200
        assert ask(port, request(host="evil.example", Cookie=cookie.split(";")[0]))[0] == 421


async def event(reader) -> dict:
    """The next picture that a listener is sent."""
    while True:
        line = await reader.readline()
        assert line, "the server has hung up"
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))["parts"]


async def listening(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(request("/events"))
    assert set(await event(reader)) == set(PARTS)
    return reader, writer


def test_200_listeners_hear_of_a_change_and_a_slow_one_holds_up_nobody():
    async def play(server, port):
        slow, waiting = await listening(port)  # It reads nothing until the end.
        others = await asyncio.gather(*(listening(port) for _ in range(LISTENERS)))
        for number in range(40):  # More than the network takes for who does not read.
            server.publish(
                PARTS | {"title": Markup(f"{number}"), "now": Markup(f"{number}" * 2**19)}
            )
            if number % 10 == 9:
                for reader, _ in others[:2]:
                    while (await event(reader)).get("title") != f"{number}":
                        pass
        server.publish(PARTS | {"title": Markup("the last")})
        for reader, _ in others:
            while (await event(reader)).get("title") != "the last":
                pass
        heard = []
        while "the last" not in heard:
            heard.append((await event(slow)).get("title"))
        assert len(heard) < 40  # It was spared what was not new any more.
        for _, writer in [*others, (slow, waiting)]:
            writer.close()

    assert LISTENERS < MOST_CONNECTIONS
    with serving() as (server, port):
        asyncio.run(asyncio.wait_for(play(server, port), PATIENCE_S))


def test_only_what_has_changed_is_sent():
    async def play(server, port):
        reader, writer = await listening(port)
        server.publish(PARTS)
        server.publish(PARTS | {"title": Markup("another")})
        assert await event(reader) == {"title": "another"}
        writer.close()

    with serving() as (server, port):
        asyncio.run(asyncio.wait_for(play(server, port), PATIENCE_S))


@pytest.mark.parametrize(
    ("address", "here"),
    {
        "127.0.0.1:7430": True,
        "127.9.9.9:1": True,
        "localhost:0": True,
        "[::1]:7430": True,
        "0.0.0.0:7430": False,
        "[::]:7430": False,
        "10.0.0.5:7430": False,
        "fl.example:7430": False,
        ":7430": False,
    }.items(),
)
def test_what_only_this_machine_reaches(address, here):
    assert is_loopback(address) is here


@pytest.mark.parametrize("address", ["7430", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_cannot_be_listened_on(address):
    with pytest.raises(ConfigError, match="cannot listen on"):
        Listener.at(address)


def dashboard(*arguments, **environment):
    files = ("--enclave", "fl:7420", "--key", "none.key", "--policy", "none.toml")
    return CliRunner().invoke(app, ["dashboard", *files, *arguments], env=environment)


def test_no_page_is_shown_to_other_machines_without_a_token():
    refused = dashboard("--listen", "0.0.0.0:7430")
    assert refused.exit_code == 2
    assert "--unsafe-no-token" in refused.stderr
    let = dashboard("--listen", "0.0.0.0:7430", "--unsafe-no-token")
    assert "none.key" in let.stderr  # It went on to the files.


def test_a_token_is_long_and_private(tmp_path):
    path = tmp_path / "token"
    path.write_text("short\n")
    path.chmod(0o600)
    assert "needs at least 16" in dashboard("--token-file", str(path)).stderr
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o644)
    assert "others may use" in dashboard("--token-file", str(path)).stderr
    short = dashboard(OSTRAKA_DASHBOARD_TOKEN="")
    assert "OSTRAKA_DASHBOARD_TOKEN has 0 characters" in short.stderr


SLOW = {
    "says nothing": b"",
    "begins a request": b"GET / HTTP/1.1\r\nHost: localho",
    "begins another": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
    "begins a form": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\ntok",
}


@pytest.mark.parametrize("said", SLOW.values(), ids=SLOW)
def test_a_stranger_that_asks_for_nothing_does_not_keep_its_place(monkeypatch, said):
    monkeypatch.setattr("ostraka.dashboard.server._SLOW_S", 0.2)
    with (
        serving(token=TOKEN) as (_, port),
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as near,
        suppress(ConnectionResetError),
    ):
        near.sendall(said)
        while near.recv(2**16):
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_page_that_nothing_updates_ends(monkeypatch):
    """It would show what was true before, as live."""

    def fail(observer: Observer) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Observer, "run", fail)
    for name in ("read_identity", "read_policy"):
        monkeypatch.setattr(f"ostraka.cli.dashboard.{name}", lambda path: None)
    ended = dashboard("--listen", "127.0.0.1:0")
    assert "The page of fl:7420 is at" in ended.stderr
