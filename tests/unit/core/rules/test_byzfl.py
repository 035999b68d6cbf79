"""Every rule and pre-aggregation that ByzFL has, against its numpy code.

ByzFL runs in an environment of its own (`ostraka bench peers --setup`). Where its conventions
differ, an option of ours says so: it counts n - f - 1 neighbours in Krum. Not compared are CAF and
SMEA, which take one power step from a random start for an eigenvector, so that their aggregates are
random; and CenteredClipping(m=...), which raises whatever it is given.
"""

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostraka.arrays import Float64
from ostraka.core import rules
from ostraka.core.columns import Reduction, Scratch
from ostraka.core.rules import Columnwise, Options, Plan
from ostraka.errors import ConfigError
from ostraka_lab.bench import peers


def _load(name: str) -> Any:
    """The test folders are no packages, so a module beside this one is loaded by its path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


references = _load("references")


@pytest.fixture(scope="module")
def interpreter() -> Path:
    """ByzFL's. In make soak it is set up if it can be."""
    folder = peers.environment()
    if peers.python_for("byzfl-numpy") is None and os.environ.get("OSTRAKA_SOAK") == "1":
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Tests run in several processes.
            if peers.python_for("byzfl-numpy") is None:
                try:
                    peers.setup(lambda *_: None)
                except ConfigError as error:
                    pytest.skip(f"ByzFL cannot be set up: {error}")
    found = peers.python_for("byzfl-numpy")
    if found is None:
        pytest.skip(f"ByzFL is {peers.advice('byzfl-numpy')}")
    return found


@dataclass(frozen=True)
class Contest:
    """The same rows through a chain of ByzFL's classes and through a composition of ours."""

    chain: list[tuple[str, dict[str, Any]]]
    text: str
    options: Options
    rows: Float64
    f: int
    kind: str
    seed: int


def chains(n: int, f: int, size: float) -> list[tuple[list[tuple[str, Any]], str, Options]]:
    """What ByzFL has, and what we call it. size: a typical length of rows."""
    byzantine, near = {"f": f}, Options(neighbours=n - f - 1)
    nnm, arc = ("NNM", byzantine), ("ARC", byzantine)
    return [
        ([("Average", {})], "mean", Options()),
        ([("MultiKrum", byzantine)], "multi-krum", near),
        ([nnm, ("Krum", byzantine)], "nnm+krum", near),
        ([nnm, ("MultiKrum", byzantine)], "nnm+multi-krum", near),
        ([("MDA", byzantine)], "mda", Options()),
        ([("MoNNA", byzantine | {"idx": n - 1})], "monna", Options(root="hospital-a")),
        (
            [("GeometricMedian", {"nu": 0.1 * size, "T": 3})],
            "geometric-median",
            Options(smoothing=0.1 * size, iterations=3),
        ),
        (
            [arc, nnm, ("GeometricMedian", {"nu": 1e-3 * size, "T": 50})],
            "arc+nnm+geometric-median",
            Options(smoothing=1e-3 * size, iterations=50),
        ),
        (
            [("CenteredClipping", {"L": 1, "tau": 0.5 * size})],
            "centred-clipping",
            Options(radius=0.5 * size, iterations=1),
        ),
        (
            [arc, ("CenteredClipping", {"L": 5, "tau": 1.5 * size})],
            "arc+centred-clipping",
            Options(radius=1.5 * size, iterations=5),
        ),
        ([("Clipping", {"c": size}), ("MDA", byzantine)], "clip+mda", Options(radius=size)),
        (
            [("Bucketing", {"s": 2}), ("GeometricMedian", {"nu": size, "T": 7})],
            "bucketing+geometric-median",
            Options(smoothing=size, iterations=7),
        ),
        ([("Bucketing", {"s": 3}), ("Average", {})], "bucketing+mean", Options(bucket=3)),
        ([("Median", {})], "median", Options()),
        ([("TrMean", byzantine)], "trimmed-mean", Options()),
        ([("Meamed", byzantine)], "meamed", Options()),
        ([nnm, ("TrMean", byzantine)], "nnm+trimmed-mean", Options()),
        ([arc, ("Median", {})], "arc+median", Options()),
    ]


def contests(count: int) -> list[Contest]:
    """For every seed a federation, and all chains on it for which there are enough rows."""
    found = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        f, kind = int(rng.integers(0, 4)), references.KINDS[seed % len(references.KINDS)]
        n = 3 * f + 4 + int(rng.integers(0, 3))
        rows = references.federation(rng, kind, n, f)
        # Values of float32, which is what column-wise rules reduce.
        rows = rows.astype(np.float32).astype(np.float64)
        size = float(np.median(np.linalg.norm(rows, axis=1))) or 1.0
        for chain, text, options in chains(n, f, size):
            if rules.parse(text, options).least(f) <= n:
                found.append(Contest(chain, text, options, rows, f, kind, seed))
    return found


def byzfl_runs(python: Path, jobs: list[dict[str, Any]], rows: dict[str, Float64], folder: Path):
    (folder / "jobs.json").write_text(json.dumps(jobs))
    np.savez(folder / "rows.npz", **rows)  # type: ignore[arg-type]
    paths = [folder / name for name in ("jobs.json", "rows.npz", "out.npz")]
    script = Path(__file__).with_name("byzfl_runner.py")
    done = subprocess.run(
        [python, "-W", "ignore", script, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    out = np.load(folder / "out.npz")
    return [out[str(number)] for number in range(len(jobs))]


def ours(contest: Contest) -> Float64:
    """The aggregate of our composition. Raises `references.Tie` where two answers are right."""
    composition = rules.parse(contest.text, contest.options)
    n, root = len(contest.rows), None
    order = np.arange(n)
    if "bucketing" in composition.pre:
        order = np.random.RandomState(contest.seed).permutation(n)
    given: dict[str, Any] = {"order": order}
    if composition.rule.needs_root:
        given["root"] = root = n - 1
    if not composition.rule.columnwise:
        references.aggregate(
            composition.name,
            composition.pre,
            contest.rows,
            contest.f,
            composition.options,
            **given,
        )
    elif "nnm" in composition.pre:
        references.nnm(contest.rows, contest.f, composition.options, order)
    plan = composition.unlimited(references.gram_of(contest.rows, root), contest.f, order)
    return applied(plan, contest.rows)


def applied(plan: Plan, rows: Float64) -> Float64:
    if not isinstance(plan, Columnwise):
        return plan.values @ rows
    mixed = np.ascontiguousarray(plan.matrix @ rows, np.float32)
    out = np.empty(rows.shape[1])
    Reduction(len(mixed), plan.reducer, plan.count).apply(list(mixed), out, Scratch(len(out)))
    return out


@pytest.mark.slow
def test_byzfl_s_numpy_code_gives_the_same_aggregates(interpreter, tmp_path, scale):
    asked = contests(scale(40, 500))
    jobs = [
        {"rows": str(contest.seed), "chain": contest.chain, "seed": contest.seed}
        for contest in asked
    ]
    rows = {str(contest.seed): contest.rows for contest in asked}
    theirs = byzfl_runs(interpreter, jobs, rows, tmp_path)
    wrong, compared = [], dict.fromkeys((contest.text for contest in asked), 0)
    for contest, expected in zip(asked, theirs, strict=True):
        assert expected.dtype.kind == "f", (contest.text, str(expected))
        try:
            found = ours(contest)
        except references.Tie:
            continue
        compared[contest.text] += 1
        longest = np.linalg.norm(contest.rows, axis=1).max()
        columnwise = rules.parse(contest.text, contest.options).rule.columnwise
        agreement = 1e-6 if columnwise else 1e-10
        if not np.linalg.norm(found - expected) <= agreement * longest:
            wrong.append((contest.text, contest.kind, contest.seed))
    assert not wrong
    assert min(compared.values()) > scale(40, 500) / 3


@pytest.mark.slow
def test_byzfl_s_pre_aggregations_make_the_same_rows(interpreter, tmp_path, scale):
    """Where no rule after them can hide a difference."""
    jobs: list[dict[str, Any]] = []
    rows, expected = {}, []
    for seed in range(scale(40, 500)):
        rng = np.random.default_rng(seed)
        f, kind = int(rng.integers(0, 4)), references.KINDS[seed % len(references.KINDS)]
        n = 2 * f + 2 + int(rng.integers(0, 8))
        rows[str(seed)] = mine = references.federation(rng, kind, n, f)
        radius = float(np.linalg.norm(mine, axis=1).mean()) or 1.0
        for name, arguments, options in (
            ("NNM", {"f": f}, Options()),
            ("ARC", {"f": f}, Options()),
            ("Clipping", {"c": radius}, Options(radius=radius)),
            ("Bucketing", {"s": 3}, Options(bucket=3)),
        ):
            step = rules.PRE[rules.ALIASES[name]]
            order = np.random.RandomState(seed).permutation(n)
            try:
                references.PRE[rules.ALIASES[name]](mine, f, options, order)
            except references.Tie:
                continue
            mixing = step.mix(references.gram_of(mine), f, options, order)
            matrix = np.eye(n) if mixing.shares is None else mixing.shares
            expected.append((matrix if mixing.factors is None else matrix * mixing.factors) @ mine)
            jobs.append({"rows": str(seed), "chain": [[name, arguments]], "seed": seed})
    theirs = byzfl_runs(interpreter, jobs, rows, tmp_path)
    for job, mixed, given in zip(jobs, expected, theirs, strict=True):
        longest = np.linalg.norm(rows[job["rows"]], axis=1).max()
        assert given.shape == mixed.shape, job
        assert np.abs(mixed - given).max() <= 1e-10 * longest, job


@pytest.mark.slow
def test_what_is_not_compared_is_as_broken_as_it_is_said_to_be(interpreter, tmp_path):
    """If one of these fails, ByzFL has been repaired, and can be compared."""
    rows = {"rows": np.random.default_rng(0).standard_normal((9, 6))}
    jobs = [
        {"rows": "rows", "chain": [["CAF", {"f": 2}]], "seed": 0},
        {"rows": "rows", "chain": [["CAF", {"f": 2}]], "seed": 1},
        {"rows": "rows", "chain": [["SMEA", {"f": 2}]], "seed": 0},
        {"rows": "rows", "chain": [["SMEA", {"f": 2}]], "seed": 3},
        {"rows": "rows", "chain": [["CenteredClipping", {"m": [0.0] * 6}]], "seed": 0},
    ]
    caf, other_caf, smea, other_smea, clipping = byzfl_runs(interpreter, jobs, rows, tmp_path)
    assert np.linalg.norm(caf - other_caf) > 1e-3
    assert np.linalg.norm(smea - other_smea) > 1e-3
    assert str(clipping).startswith("TypeError")
