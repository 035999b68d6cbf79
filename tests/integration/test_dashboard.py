"""The live page of a real federation under attack, in a real browser.

All processes are real: the enclave, three workers of whom one lies, seven clients of whom one sends
what is no update, and the page's server. They are started once for all tests of this file.
"""

import json
import re
import shutil
import subprocess
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 300_000
LIAR, CHEAT = "worker-1", "client-7"
AXE = "axe-core@4.10.3"
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
SIZES = {"desk": (1280, 900), "telephone": (400, 800)}
REFUSED = "net::ERR_"  # how Chromium tells of a server that is away

# Clients that take part in every round, each in a thread. A cheat states a false norm.
CLIENTS = """
import sys, threading, time
import numpy as np
import ostraka
from ostraka.core import uploads
from ostraka.errors import OstrakaError
address, root, cheats, *names = sys.argv[1:]
if cheats == "cheats":
    uploads.norm = lambda _: 1.0

def take_part(name):
    draw = np.random.default_rng(abs(hash(name)) % 2**32).normal
    while True:
        try:
            with ostraka.Client(
                address, name=name, key=f"{root}/keys/{name}.key", policy=f"{root}/policy.toml",
                unsafe_simulation=True, timeout=60,
            ) as client:
                while not (model := client.fetch()).finished:
                    time.sleep(0.3)
                    client.submit(1 + 0.3 * draw(size=model.vector.shape).astype("f4"))
        except OstrakaError as error:
            print(name, error, flush=True)
            time.sleep(0.5)

for name in names:
    threading.Thread(target=take_part, args=(name,)).start()
"""


@dataclass
class Watched:
    """A federation under attack, and the page over it."""

    deployment: Any
    enclave: Any = None
    dashboard: Any = None
    url: str = ""

    def start_enclave(self) -> None:
        self.enclave = self.deployment.enclave()

    def start_dashboard(self, listen: str = "127.0.0.1:0") -> None:
        root = self.deployment
        self.dashboard = root.spawn(
            "dashboard",
            *("-m", "ostraka", "dashboard", "--enclave", root.address, "--listen", listen),
            *("--key", str(root.key("observer")), "--policy", str(root.policy)),
            "--unsafe-simulation",
        )
        place = self.dashboard.wait_for("http://")
        found = re.search(r"http://\S+", self.dashboard.lines[place - 1])
        assert found
        self.url = found[0]


@pytest.fixture(scope="module")
def watched(deploy_once):
    settings = {"count": 100_000, "workers": 2, "grace_s": 2, "client_momentum": 0.0}
    settings |= {"measure_s": 60, "requests_per_minute": 100_000}
    federation = Watched(
        deploy_once(settings=settings, clients=7, f=2, workers=3, dimension=20_000, grace_s=2)
    )
    root = federation.deployment
    federation.start_enclave()
    root.lying_worker(1)
    root.worker(2)
    root.worker(3)
    federation.start_dashboard()
    honest = [f"client-{number}" for number in range(1, 7)]
    root.spawn("clients", "-c", CLIENTS, root.address, str(root.root), "honest", *honest)
    root.spawn("cheat", "-c", CLIENTS, root.address, str(root.root), "cheats", CHEAT)
    return federation


@pytest.fixture(scope="module")
def browser():
    if not Path(CHROMIUM).exists():
        pytest.skip(f"needs {CHROMIUM}")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Seen:
    """A page in the browser, and what went wrong in it."""

    page: Any
    errors: list[str] = field(default_factory=list)

    def wait_for(self, selector: str, text: str) -> None:
        """Until an element has this text in it."""
        self.page.locator(selector, has_text=text).first.wait_for(timeout=PATIENCE_MS)

    def text(self, part: str) -> str:
        return str(self.page.locator(f'[data-part="{part}"]').inner_text())

    def published(self) -> int:
        """The newest receipt on the page."""
        found = self.page.locator('[data-part="receipts"] tbody th').first
        return int(found.inner_text(timeout=PATIENCE_MS))

    def wait_for_rounds(self, count: int) -> None:
        """Until this many more are published, without a reload."""
        until, goal = time.monotonic() + PATIENCE_MS / 1000, self.published() + count
        while self.published() < goal:
            assert time.monotonic() < until, self.page.inner_text("body")
            self.page.wait_for_timeout(200)


@pytest.fixture
def look(browser, watched):
    """look(size, scheme) is the page. It must not be loaded again, nor report an error."""
    opened = []

    def make(size: str = "desk", scheme: str = "light") -> Seen:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        seen = Seen(context.new_page())
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on(
            "console",
            lambda said: seen.errors.append(said.text) if said.type == "error" else None,
        )
        seen.page.goto(watched.url)
        seen.page.evaluate("window.sameDocument = true")
        opened.append((context, seen))
        seen.wait_for("#link", "live")
        return seen

    yield make
    for context, seen in opened:
        assert seen.page.evaluate("window.sameDocument") is True, "it was loaded again"
        assert not [each for each in seen.errors if REFUSED not in each]
        context.close()


@pytest.mark.slow
def test_the_page_of_a_federation_under_attack_updates_by_itself(look, watched):
    seen = look()
    seen.wait_for('[data-part="receipts"]', "verified")
    seen.wait_for_rounds(2)
    assert "SIMULATED" in seen.text("notices")
    assert not seen.errors
    shown = {part: seen.text(part) for part in ("terms", "evidence", "service", "now")}
    assert "arc+nnm+geometric-median" in shown["terms"]
    assert "mrenclave" in shown["evidence"]
    assert "MiB" in shown["service"]
    assert "Published" in shown["now"]
    assert seen.page.locator('[data-part="stages"] svg rect').count() > 0


@pytest.mark.slow
def test_the_page_shows_a_rejection_and_who_lied(look):
    seen = look()
    seen.wait_for('[data-part="rejections"] tr', CHEAT)
    row = seen.page.locator('[data-part="rejections"] tr', has_text="verified").first
    assert "norm is not the stated one" in row.inner_text(timeout=PATIENCE_MS)
    seen.wait_for('[data-part="workers"] p', f"{LIAR} returned false numbers")
    lies = seen.page.locator('[data-part="workers"] tr', has_text=LIAR).locator("td").nth(2)
    assert int(lies.inner_text()) > 0
    honest = seen.page.locator('[data-part="workers"] tr', has_text="worker-2").locator("td")
    assert honest.nth(2).inner_text() == "0"


@pytest.mark.slow
def test_the_page_survives_a_restart_of_the_enclave(look, watched):
    seen = look()
    seen.wait_for_rounds(1)
    watched.enclave.stop()
    seen.wait_for('[data-part="notices"]', "Connection lost")
    assert "tried again" in seen.text("sentence")
    before = seen.published()
    watched.start_enclave()
    seen.page.locator('[data-part="notices"]', has_text="Connection lost").wait_for(
        state="detached", timeout=PATIENCE_MS
    )
    seen.wait_for('[data-part="service"] div', "Restarts seen")
    seen.wait_for_rounds(1)
    assert seen.published() > before
    restarts = seen.page.locator('[data-part="service"] div', has_text="Restarts seen")
    assert int(restarts.locator("dd").inner_text()) >= 1
    assert not seen.errors


@pytest.mark.slow
def test_the_page_survives_the_loss_of_its_own_server(look, watched):
    seen = look()
    address = watched.url.removeprefix("http://").rstrip("/")
    watched.dashboard.kill()
    seen.wait_for("#link", "connection lost, trying again")
    watched.start_dashboard(address)
    seen.wait_for("#link", "live")
    seen.wait_for_rounds(1)


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The source of axe-core, from the package registry."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm to fetch axe-core")
    folder = tmp_path_factory.mktemp("axe")
    got = subprocess.run(
        ["npm", "pack", "--silent", "--pack-destination", str(folder), AXE],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if got.returncode:
        pytest.skip(f"axe-core cannot be fetched: {got.stderr.strip()[:200]}")
    (packed,) = folder.glob("*.tgz")
    with tarfile.open(packed) as package:
        source = package.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_everybody_can_read_the_page(look, axe, size, scheme, tmp_path):
    seen = look(size, scheme)
    seen.wait_for('[data-part="rejections"] tr', CHEAT)
    seen.wait_for('[data-part="receipts"]', "verified")
    for summary in seen.page.locator("summary").all():
        summary.click()
    wide = seen.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    seen.page.screenshot(path=tmp_path / f"{size}-{scheme}.png", full_page=True)
    background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(245, 247, 249)") is (scheme == "light")
    seen.page.evaluate(axe)
    found = seen.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    violations = [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"]]
    assert not violations, json.dumps(violations, indent=1)


@pytest.mark.slow
def test_the_page_can_be_used_by_keyboard(look):
    seen = look("telephone")
    seen.wait_for('[data-part="receipts"]', "verified")
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.className") == "skip"
    seen.page.keyboard.press("Enter")
    seen.page.keyboard.press("Tab")
    summary = seen.page.locator("#stages-table > summary")
    summary.focus()
    seen.page.keyboard.press("Enter")
    seen.page.locator("#stages-table[open]").wait_for(timeout=PATIENCE_MS)
    seen.wait_for_rounds(1)  # What was opened stays open, and what has the focus keeps it.
    assert seen.page.locator("#stages-table[open]").count() == 1
    assert seen.page.evaluate("document.activeElement.tagName") == "SUMMARY"
