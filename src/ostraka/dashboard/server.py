"""Serves the page: one picture for all, pushed to all listeners.

It answers GET, and the POST of the form that asks for the token; it has no way to say anything to
the federation. A listener gets the newest picture when it is ready for one, so that a slow one
skips pictures and holds up nobody.
"""

import asyncio
import hmac
import json
import re
import secrets
import socket
import time
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ostraka.dashboard import page
from ostraka.dashboard.markup import Markup
from ostraka.errors import ConfigError

LEAST_TOKEN = 16  # characters
MOST_CONNECTIONS = 512

_BEAT_S = 15.0  # between two signs of life
_STUCK_S = 60.0  # for a listener to take what it is sent
_SLOW_S = 20.0  # for a browser to send a request
_END_S = 1
_LONGEST_FORM = 4096
_LONGEST_HEAD = 16_384
_STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Hub:
    """The newest picture, and who waits for the next. All of it is used on one event loop."""

    def __init__(self, parts: Mapping[str, Markup]) -> None:
        self.parts = dict(parts)
        self.listeners = 0
        self.closed = False
        self._news = asyncio.Event()

    def publish(self, parts: Mapping[str, Markup]) -> None:
        if parts != self.parts:
            self.parts = dict(parts)
            self._wake()

    def close(self) -> None:
        """Let all listeners end."""
        self.closed = True
        self._wake()

    async def changed(self, seconds: float) -> None:
        """Wait for the next picture, up to this time."""
        news = self._news
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            return

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Listening(Response):
    """Server-sent events for one listener: at first all parts, and then those that have changed."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub) -> None:
        super().__init__(media_type=self.media_type)
        del self.headers["content-length"]
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._hub.listeners += 1
        tasks = [asyncio.create_task(self._stream(send)), asyncio.create_task(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.listeners -= 1
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        sent: dict[str, Markup] = {}
        while not self._hub.closed:
            newest = self._hub.parts
            new = {name: part for name, part in newest.items() if sent.get(name) != part}
            text = f"data: {json.dumps({'now': time.time(), 'parts': new})}\n\n" if new else ":\n\n"
            async with asyncio.timeout(_STUCK_S):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            sent = newest
            if newest is self._hub.parts:
                await self._hub.changed(_BEAT_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass
class Door:
    """Lets in who asks the right host, by a known method, and with the token if there is one.

    hosts: names that the server is called by, besides localhost and numbers: a page of another
    name that leads here is a stranger's, which tries to read what only this machine may see.
    """

    app: ASGIApp
    hub: Hub
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset()
    port: int = 0
    _session: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await self._answer(scope)(scope, receive, _guarded(send))

    def _answer(self, scope: Scope) -> ASGIApp:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        if not self._is_called(headers.getlist("host")):
            return _plain(421, "This server is not called by that name: see --host.")
        if path == "/login" and method == "POST" and self.token is not None:
            return self._login
        if method not in ("GET", "HEAD"):
            return _plain(405, "Nothing can be changed here.", {"allow": "GET, HEAD"})
        if not self._is_known(headers):
            # The form needs its style, which is no secret.
            open_to_all = path == "/static/page.css"
            return self.app if open_to_all else HTMLResponse(page.login(wrong=False), 401)
        return self.app

    def _is_called(self, host: list[str]) -> bool:
        match = _HOST.fullmatch(host[0]) if len(host) == 1 else None
        if match is None:
            return False
        name = (match[1] or match[2]).lower()
        return name == "localhost" or name in self.hosts or _is_number(name)

    def _is_known(self, headers: Headers) -> bool:
        if self.token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self.token):
            return True
        cookies = (each.partition("=") for each in headers.get("cookie", "").split(";"))
        return any(
            name.strip() == self._cookie and _same(value, self._session)
            for name, _, value in cookies
        )

    @property
    def _cookie(self) -> str:
        """Browsers send cookies to all ports of a host."""
        return f"ostraka-dashboard-{self.port}"

    async def _login(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        try:
            async with asyncio.timeout(_SLOW_S):
                async for chunk in Request(scope, receive).stream():
                    body += chunk
                    if len(body) > _LONGEST_FORM:
                        await _plain(413, "Too long.")(scope, receive, send)
                        return
        except TimeoutError:
            await _plain(408, "Too slow.", {"connection": "close"})(scope, receive, send)
            return
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not _same(given, self.token or ""):
            await HTMLResponse(page.login(wrong=True), 403)(scope, receive, send)
            return
        entered = RedirectResponse("./", 303)
        entered.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        await entered(scope, receive, send)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _plain(code: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(f"{text}\n", code, dict(headers or {}), "text/plain")


def _guarded(send: Send) -> Send:
    """Adds the headers that keep a browser from doing anything that the page does not."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message.get("headers", ()), *more]
        await send(message)

    return sending


def make_app(
    hub: Hub, *, token: str | None = None, hosts: frozenset[str] = frozenset(), port: int = 0
) -> Door:
    """The whole server, as an ASGI application."""
    content = {
        name: files("ostraka.dashboard").joinpath("static", name).read_bytes() for name in _STATIC
    }

    async def show(_: Request) -> Response:
        return HTMLResponse(page.whole(hub.parts))

    async def listen(_: Request) -> Response:
        return Listening(hub)

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in content:
            return _plain(404, "Not found.")
        return Response(content[name], media_type=_STATIC[name])

    routes = [
        Route("/", show),
        Route("/events", listen),
        Route("/static/{name}", static),
    ]
    return Door(Starlette(routes=routes), hub, token, hosts, port)


class _Prompt(H11Protocol):
    """Ends a connection on which no request comes in time.

    Uvicorn waits for ever, and anybody could take all connections that there are.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_SLOW_S, self._look, None)

    def _look(self, before: object) -> None:
        if self.transport.is_closing():
            return
        answered = getattr(self.cycle, "response_complete", True)  # It is None at first.
        if self.cycle is before and answered:
            self.transport.abort()
        else:
            self.loop.call_later(_SLOW_S, self._look, self.cycle)


class _Unsignalled(uvicorn.Server):
    """Leaves signals to the program that runs it."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@dataclass
class Listener:
    """Where the page is served: a socket that is bound already."""

    bound: socket.socket

    @classmethod
    def at(cls, address: str) -> "Listener":
        """Bind HOST:PORT. Raises ConfigError."""
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match[2]) >= 2**16:
            raise ConfigError(f"cannot listen on {address!r}: it has to be HOST:PORT")
        host = match[1].strip("[]")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return cls(socket.create_server((host, int(match[2])), family=family, backlog=1024))
        except OSError as failed:
            raise ConfigError(f"cannot listen on {address}: {failed}") from None

    @property
    def port(self) -> int:
        return int(self.bound.getsockname()[1])

    @property
    def url(self) -> str:
        host = self.bound.getsockname()[0]
        named = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (looked up)
        return f"http://{f'[{named}]' if ':' in named else named}:{self.port}/"


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches what listens at HOST:PORT."""
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or (_is_number(host) and ip_address(host).is_loopback)


class Serving:
    """Runs the page's server, on the loop of the thread that calls `run`."""

    def __init__(
        self,
        listener: Listener,
        parts: Mapping[str, Markup],
        *,
        token: str | None = None,
        hosts: frozenset[str] = frozenset(),
    ) -> None:
        self._listener = listener
        self._first = parts
        self._token = token
        self._hosts = hosts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self.hub: Hub | None = None

    def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. started: called when others may call `publish` and `stop`."""
        asyncio.run(self._run(started))

    async def _run(self, started: Callable[[], None]) -> None:
        self._loop, self.hub = asyncio.get_running_loop(), Hub(self._first)
        port = self._listener.port
        app: Any = make_app(self.hub, token=self._token, hosts=self._hosts, port=port)
        self._server = _Unsignalled(
            uvicorn.Config(
                app,
                http=_Prompt,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MOST_CONNECTIONS,
                h11_max_incomplete_event_size=_LONGEST_HEAD,
                timeout_graceful_shutdown=_END_S,
            )
        )
        started()
        await self._server.serve(sockets=[self._listener.bound])

    def publish(self, parts: Mapping[str, Markup]) -> None:
        """Show these parts to everybody, from any thread."""
        self._call(lambda hub: hub.publish(parts))

    def stop(self) -> None:
        """End, from any thread."""

        def end(hub: Hub) -> None:
            hub.close()
            if self._server is not None:
                self._server.should_exit = True

        self._call(end)

    def _call(self, what: Callable[[Hub], None]) -> None:
        if self._loop is None or self.hub is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(what, self.hub)
