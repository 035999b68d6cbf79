"""`ostraka dashboard`."""

import os
import signal
import webbrowser
from pathlib import Path
from threading import Thread
from typing import Annotated

import click
import typer

from ostraka.cli.client import Enclave, Policy, Simulation, TlsCa
from ostraka.cli.worker import stopped_by_signals
from ostraka.client.attesting import Verifier
from ostraka.dashboard import page
from ostraka.dashboard.server import LEAST_TOKEN, Listener, Serving, is_loopback
from ostraka.dashboard.watching import Observer, View
from ostraka.errors import INTERRUPTED, ConfigError
from ostraka.files import read_identity, read_policy, read_private

TOKEN_VARIABLE = "OSTRAKA_DASHBOARD_TOKEN"  # noqa: S105
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def dashboard(
    *,
    enclave: Enclave,
    key: Annotated[Path, typer.Option(help="The observer's key file.")],
    policy: Policy,
    name: Annotated[str, typer.Option(help="The observer's name in federation.toml.")] = "observer",
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the page; port 0 for any that is free.")
    ] = "127.0.0.1:7430",
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with a token that the page asks for; or ${TOKEN_VARIABLE}."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name that browsers call this server by; may be repeated."),
    ] = None,
    unsafe_no_token: Annotated[
        bool,
        typer.Option(
            "--unsafe-no-token", help="Show the page to anybody who reaches this address."
        ),
    ] = False,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser, if there is a screen.")
    ] = False,
    tls_ca: TlsCa = None,
    unsafe_simulation: Simulation = False,
) -> None:
    """Show a running federation as a live page.

    The round and its deadline, who has arrived and who is awaited, confirmations, the time of each
    stage, workers that lie, rejections, the terms, and the chain of receipts, verified here. The
    page needs an [[observer]] in federation.toml, with the public key of --key; `ostraka init`
    makes one. It sees what `ostraka status` shows its operator, and can change nothing.

    It is for this machine unless --listen says otherwise, and then it needs a token. The token is
    read from a file or from the environment, since everybody on a machine sees a command's
    arguments. Elsewhere, put a proxy with TLS before it, or use ssh -L. SIGTERM ends it with exit
    code 0, Ctrl-C with 130.

    \b
    Examples:
      ostraka dashboard --enclave fl:7420 --key keys/observer.key --policy policy.toml
      ostraka dashboard --enclave fl:7420 --key o.key --policy p.toml --listen 127.0.0.1:0 --open
      ostraka dashboard --enclave fl:7420 --key o.key --policy p.toml --listen 0.0.0.0:7430 \\
          --token-file dashboard.token --host fl.example
    """
    token = _token(token_file)
    if token is None and not (is_loopback(listen) or unsafe_no_token):
        raise ConfigError(
            f"{listen} can be reached from other machines: give --token-file, or set "
            f"{TOKEN_VARIABLE}; or say --unsafe-no-token, and everybody there sees the names of "
            "all clients"
        )
    identity = read_identity(key)
    who = Verifier(name, identity, read_policy(policy), policy, unsafe_simulation, observes=True)
    listener = Listener.at(listen)
    serving = Serving(
        listener,
        page.parts(View(enclave)),
        token=token,
        hosts=frozenset(each.lower() for each in host or ()),
    )
    observer = Observer(
        enclave, who, show=lambda view: serving.publish(page.parts(view)), tls_ca=tls_ca
    )

    def watch() -> None:
        try:
            observer.run()
        finally:
            serving.stop()  # A page that nobody updates any more must not look alive.

    watching = Thread(target=watch, name="observer", daemon=True)

    def started() -> None:
        watching.start()
        click.echo(f"The page of {enclave} is at {listener.url}", err=True)
        if open_browser and any(map(os.environ.get, _SCREENS)):
            webbrowser.open(listener.url)

    with stopped_by_signals(serving.stop) as caught:
        serving.run(started)
    observer.stop()
    if signal.SIGINT in caught:
        raise typer.Exit(INTERRUPTED)


def _token(path: Path | None) -> str | None:
    """The token that is asked for, if there is one. Raises ConfigError."""
    given = os.environ.get(TOKEN_VARIABLE) if path is None else read_private(path).strip()
    if given is None:
        return None
    if len(given) < LEAST_TOKEN:
        where = TOKEN_VARIABLE if path is None else path
        raise ConfigError(
            f"the token in {where} has {len(given)} characters, and needs at least {LEAST_TOKEN}: "
            "make one by `openssl rand -hex 16`"
        )
    return given
