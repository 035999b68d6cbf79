"""The measurement: what is loaded is what is measured, and any other code measures otherwise."""

import ast
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from importlib.metadata import Distribution, distribution, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ostraka
from ostraka.cli.federation_folder import Plan
from ostraka.core.loops import native
from ostraka.enclave import measurement
from ostraka.enclave.measurement import DEPENDENCIES, MEASURED, measure, measured_files
from ostraka_lab.children import Children
from ostraka_lab.deployment import Deployment, found

PACKAGE = Path(ostraka.__file__).parent
LAB = PACKAGE.parent / "ostraka_lab"
ENTRY = "ostraka.enclave.__main__"
PATIENCE_S = 120


# What is loaded.

# Runs the real entry, and at the end prints which modules are there that were not at its beginning.
PROBE = """
import atexit, json, runpy, sys
before = set(sys.modules)
def tell():
    new = set(sys.modules) - before
    print(json.dumps({name: getattr(sys.modules[name], "__file__", None) for name in new}))
atexit.register(tell)
runpy.run_module("ostraka.enclave", run_name="__main__", alter_sys=True)
"""


def probe(*arguments, **more):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", PROBE, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more
    )


def take_part(deployment, number, outcomes):
    name = f"client-{number}"
    with ostraka.Client(
        deployment.address,
        name=name,
        key=deployment.root / "keys" / f"{name}.key",
        policy=deployment.root / "policy.toml",
        unsafe_simulation=True,
        timeout=PATIENCE_S,
    ) as client:
        client.fetch()
        outcomes.append(client.submit(np.full(100, number, np.float32)))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """{module: file} of an enclave's process that has run a whole round, in a fresh interpreter."""
    root = tmp_path_factory.mktemp("measured") / "federation"
    address = found(root, Plan(clients=3, f=0, dimension=100), count=1, linger_s=600)
    outcomes: list[ostraka.client.results.Outcome] = []
    with Children(root.parent / "logs") as children:
        deployment = Deployment(root, address, children)
        enclave = probe("run", "--config", str(deployment.config), "--unsafe-simulation")
        try:
            for number in (1, 2):
                deployment.start_worker(number)
            clients = [
                threading.Thread(target=take_part, args=(deployment, number, outcomes))
                for number in (1, 2, 3)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join(PATIENCE_S)
            enclave.terminate()
            told, logged = enclave.communicate(timeout=PATIENCE_S)
        finally:
            enclave.kill()
    assert enclave.returncode == 0, logged
    assert [outcome.accepted for outcome in outcomes] == [True] * 3, logged
    return json.loads(told)


def test_what_is_loaded_is_what_is_measured(loaded):
    ours = {name for name in loaded if name.split(".")[0] in ("ostraka", "ostraka_lab")}
    assert sorted({*ours, ENTRY} - {*MEASURED}) == [], "loaded, and not measured"
    assert sorted({*MEASURED} - {*ours, ENTRY}) == [], "measured, and not loaded"


def test_the_list_is_in_order_and_has_every_module_once():
    assert sorted(set(MEASURED)) == list(MEASURED)


def test_libraries_that_are_loaded_are_the_ones_whose_versions_are_measured(loaded):
    files = {name: file for name, file in loaded.items() if file}
    tops = {name.split(".")[0] for name in files} - sys.stdlib_module_names - {"ostraka"}
    names = packages_distributions()
    candidates = {each for top in tops for each in names[top]}
    paths = {Path(file).resolve() for file in files.values()}
    used = {each for each in candidates if provides(distribution(each), paths)}
    assert {each.replace("_", "-") for each in used} == set(DEPENDENCIES)


def provides(found: Distribution, paths: set[Path]) -> bool:
    return any(Path(str(found.locate_file(each))).resolve() in paths for each in found.files or ())


def test_no_framework_is_loaded(loaded):
    frameworks = {"click", "typer", "rich", "flwr", "torch", "sklearn", "scipy", "matplotlib"}
    assert not frameworks & {name.split(".")[0] for name in loaded}


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_module_imports_nothing_later(name):
    """A module that is imported inside a function would be loaded behind the test's back."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    late = [
        each.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for each in ast.walk(function)
        if isinstance(each, ast.Import | ast.ImportFrom)
    ]
    assert late == []


def test_its_help_loads_all_of_it_at_once():
    asked = probe("--help")
    told, failed = asked.communicate(timeout=PATIENCE_S)
    assert asked.returncode == 0, failed
    names = {name for name in json.loads(told.splitlines()[-1]) if name.startswith("ostraka")}
    assert {*names, "ostraka", ENTRY} == {*MEASURED}


# What is measured.


@pytest.fixture
def copy(tmp_path):
    """Both packages in another place."""
    nothing = shutil.ignore_patterns("__pycache__")
    shutil.copytree(LAB, tmp_path / "elsewhere" / LAB.name, ignore=nothing)
    return Path(shutil.copytree(PACKAGE, tmp_path / "elsewhere" / PACKAGE.name, ignore=nothing))


def test_it_is_reproducible():
    assert measure() == measure()
    assert len(measure().code) == len(measure().digest) == 32


def test_it_does_not_depend_on_the_place(copy):
    assert measure(copy) == measure()


def test_it_does_not_depend_on_caches_and_other_files(copy):
    (copy / "core" / "notes.txt").write_text("hello")
    (copy / "core" / "__pycache__").mkdir()
    (copy / "core" / "__pycache__" / "field.cpython-311.pyc").write_bytes(b"x")
    assert measure(copy) == measure()


def test_it_does_not_depend_on_line_ends(copy):
    for path in measured_files(copy):
        if path.suffix == ".py":
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert measure(copy) == measure()


def test_every_measured_module_is_one_file():
    assert len([path for path in measured_files() if path.suffix == ".py"]) == len(MEASURED)


LIBRARY = Path("core", "loops", "_native.so")


def test_the_library_of_loops_is_measured_by_its_bytes_if_it_is_there(copy):
    (copy / LIBRARY).unlink(missing_ok=True)
    seen = {measure(copy)}
    for content in (b"one build", b"another build\r\n", b"another build\n"):
        (copy / LIBRARY).write_bytes(content)
        assert measured_files(copy).count(copy / LIBRARY) == 1
        seen.add(measure(copy))
    assert len({each.digest for each in seen}) == 4
    assert len({each.lines for each in seen}) == 1, "a library has no lines"


def test_the_library_that_is_loaded_is_the_one_that_is_measured():
    assert native.LIBRARY == PACKAGE / LIBRARY
    assert native.LIBRARY.is_file() == (native.LIBRARY in measured_files())


def test_one_changed_byte_in_any_loaded_file_changes_it(copy):
    seen = {measure(copy).digest}
    for path in measured_files(copy):
        before = path.read_bytes()
        path.write_bytes(before + b"#")
        seen.add(measure(copy).digest)
        path.write_bytes(before)
    assert len(seen) == len(measured_files(copy)) + 1
    assert measure(copy) == measure()


def test_a_change_of_any_other_file_does_not_change_it(copy):
    measured = set(measured_files(copy))
    everything = [*copy.rglob("*"), *(copy.parent / LAB.name).rglob("*")]
    others = [path for path in everything if path.is_file() and path not in measured]
    assert any(path.suffix == ".py" and path.is_relative_to(copy) for path in others)
    for path in others:
        path.write_bytes(b"raise SystemExit")
    (copy / "core" / "new.py").write_text("")
    assert measure(copy) == measure()


def test_a_renamed_and_a_missing_file_change_it(copy):
    seen = {measure(copy).digest}
    (copy / "core" / "field.py").rename(copy / "core" / "field2.py")
    seen.add(measure(copy).digest)
    (copy / "core" / "field2.py").rename(copy / "core" / "field.pyc")
    seen.add(measure(copy).digest)
    assert len(seen) == 3


IMPOSTORS = [
    "core/field.abi3.so",
    "core/field.pyc",
    "core/field/__init__.py",
    "core/__init__.so",
    "core.so",
    "errors/__init__.py",
    "errors.cpython-311-x86_64-linux-gnu.so",
    "__init__.so",
]


@pytest.mark.parametrize("name", IMPOSTORS)
def test_what_python_would_load_in_place_of_our_code_changes_it(copy, name):
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_bytes(b"x")
    assert measure(copy).code != measure().code


def test_moving_text_from_one_file_to_the_next_changes_it(copy):
    before = measure(copy)
    first, second = measured_files(copy)[1:3]
    text = first.read_bytes()
    first.write_bytes(text[:-10])
    second.write_bytes(text[-10:] + second.read_bytes())
    assert measure(copy).code != before.code


def test_versions_are_part_of_it(monkeypatch):
    before = measure()
    assert before.dependencies[0] == ("python", platform.python_version())
    assert ("numpy", version("numpy")) in before.dependencies
    monkeypatch.setattr(measurement, "_version", lambda name: "0")
    assert measure().code == before.code
    assert measure().digest != before.digest


def test_a_library_that_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setattr(measurement, "DEPENDENCIES", ("no-such-distribution",))
    assert measure().dependencies[1] == ("no-such-distribution", "not installed")


def test_the_lines_that_people_wrote_are_counted(copy):
    before = measure(copy).lines
    for name in ("core/field.py", "transport/ostraka_pb2.py"):
        with (copy / name).open("a") as file:
            file.write("# One more line.\n")
    assert measure(copy).lines == before + 1
