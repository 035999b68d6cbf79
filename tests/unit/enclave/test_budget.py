"""How much memory a round takes, and how much rows may take, unless the operator says so."""

import os
import tracemalloc
from typing import Any

import numpy as np
import pytest

from ostraka.arrays import Float64
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.core import rules
from ostraka.core.optimiser import Optimiser
from ostraka.core.rules import Composition, Gram, Options
from ostraka.enclave.budget import Budget, needs, spare
from ostraka.errors import ConfigError

MIB = 2**20
MEMINFO = """MemTotal:       16000000 kB
MemFree:          100000 kB
MemAvailable:    8192000 kB
Buffers:           12345 kB
"""
AVAILABLE = 8_192_000 * 1024


MULTI_KRUM: dict[str, Any] = {"rule": "multi-krum", "pre": ()}


def federation(n: int = 9, *, d: int = 20_000, f: int | None = None, **terms) -> Federation:
    members = [Member(f"client-{at}", at.to_bytes(32, "big")) for at in range(1, n + 1)]
    workers = [Member(f"worker-{at}", bytes([255, at]) * 16) for at in range(7)]
    made = Terms(Manifest.flat(d), f=n // 5 if f is None else f, **({"tile": 2**15} | terms))
    return Federation(made, tuple(members), tuple(workers), b"a" * 32, b"i" * 32)


SMALL = federation()


def rows_of(size: int | None) -> int:
    return Budget(size).rows(SMALL)


@pytest.fixture
def machine(tmp_path):
    """machine(meminfo, limit, current) is what rows may have on one that says so. None: no file."""

    def make(meminfo=MEMINFO, limit=None, current=None, stat=None):
        files = {
            "meminfo": meminfo,
            "memory.max": limit,
            "memory.current": current,
            "memory.stat": stat,
        }
        for name, text in files.items():
            if text is not None:
                (tmp_path / name).write_text(text)
        return rows_of(spare(tmp_path / "meminfo", tmp_path))

    return make


def test_half_of_what_is_to_spare(machine):
    assert machine() == AVAILABLE // 2


def test_a_control_group_that_has_less_to_spare_decides(machine):
    assert machine(limit=f"{3000 * MIB}\n", current=f"{1000 * MIB}\n") == 1000 * MIB


def test_what_a_round_takes_beside_its_rows_comes_first():
    needed = needs(SMALL).total
    assert rows_of(needed + 1000) == 1000
    assert rows_of(needed - 1) == 0
    assert Budget(needed - 1, given=5).rows(SMALL) == 5


def test_a_control_group_that_has_more_to_spare_does_not(machine):
    assert machine(limit=f"{10 * AVAILABLE}\n", current="4096\n") == AVAILABLE // 2


@pytest.mark.parametrize(
    ("stat", "mib"),
    [(f"anon 5\ninactive_file {800 * MIB}\n", 1400), ("inactive_file much\n", 1000), ("", 1000)],
)
def test_files_that_a_control_group_has_read_are_no_use_of_memory(machine, stat, mib):
    found = machine(limit=f"{3000 * MIB}\n", current=f"{1000 * MIB}\n", stat=stat)
    assert found == mib * MIB


def test_a_control_group_above_its_limit_leaves_nothing(machine):
    assert machine(limit=f"{1000 * MIB}\n", current=f"{1001 * MIB}\n") == 0


@pytest.mark.parametrize(
    ("limit", "current"),
    [("max\n", f"{1000 * MIB}\n"), (None, None), ("garbage", "4096"), (f"{MIB}\n", None)],
    ids=["unlimited", "no files", "not a number", "usage unknown"],
)
def test_a_control_group_without_a_known_limit_sets_none(machine, limit, current):
    assert machine(limit=limit, current=current) == AVAILABLE // 2


@pytest.mark.parametrize(
    "meminfo",
    [None, "", "MemTotal: 16000000 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"],
    ids=["no file", "empty", "another line", "no number", "not a number"],
)
def test_an_unknown_machine_has_no_room(machine, meminfo):
    """All rows are spooled then: slower, and nothing is ended for want of memory."""
    assert machine(meminfo) == 0


def test_this_machine_has_some():
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < rows_of(spare()) < whole


# What a round takes.


def test_ten_thousand_clients_on_a_sketch():
    """The federation that is played in tests/integration/test_scale.py."""
    large = needs(federation(10_000, sketch=4096, **MULTI_KRUM))
    assert large.sketches == 2 * 4 * 10_000 * 4096
    assert large.matrices == 48 * 10_000**2
    assert needs(federation(10_000, sketch=16_384)).matrices == 96 * 10_000**2
    assert 5500 * MIB < large.total < 6500 * MIB


def test_needs_grow_with_what_the_terms_ask_for():
    plain = needs(SMALL)
    assert needs(federation(distances="inside", workers=0)).pieces < plain.pieces
    inside: dict[str, Any] = {"distances": "inside", "workers": 0}
    counted = needs(federation(upload="int8", **inside)).pieces
    assert 8 * counted == needs(federation(**inside)).pieces
    assert needs(federation(workers=7)).pieces > plain.pieces
    assert needs(federation(optimiser=Optimiser("fedadam"))).vectors > 2 * plain.vectors
    assert needs(federation(sketch=16_384)).sketches > plain.sketches == 0
    assert needs(federation(d=40_000)).vectors == 2 * plain.vectors
    assert needs(SMALL, threads=9).service > plain.service


def every_composition() -> list[Composition]:
    made = []
    for name in rules.RULES:
        root = Options(root="client-1") if rules.RULES[name].needs_root else Options()
        for pre in ((), ("arc", "nnm"), ("clip",), ("bucketing",)):
            try:
                made.append(rules.compose(name, pre, root))
            except ConfigError:
                continue
    return made


@pytest.mark.parametrize("composition", every_composition(), ids=str)
def test_deciding_takes_no_more_than_is_stated(composition):
    """The stated bytes are for what was measured, and a copy without the rejected, too."""
    n, rng = 300, np.random.default_rng(0)
    rows = rng.standard_normal((n, 16)) / 9
    products: Float64 = rows @ rows.T
    gram = Gram(products, np.full((n, n), 1e-9), 1.0, root=0, last=np.zeros(n))
    f = next(f for f in range(n // 5, -1, -1) if composition.least(f) <= n)
    terms: dict[str, Any] = {
        "rule": composition.name,
        "pre": composition.pre,
        "options": composition.options,
    }
    stated = needs(federation(n, f=f, disclose_values=True, **terms)).matrices
    tracemalloc.start()
    try:
        composition.plan(gram, f, np.arange(n))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Blocks of 128 rows are a large part of so few.
    assert peak <= stated - 32 * n * n + 3 * 8 * 128 * n


def test_a_machine_that_is_too_small_is_told_what_would_do():
    large = federation(10_000, sketch=4096, **MULTI_KRUM)
    needed = needs(large).total
    Budget(needed).require(large)
    Budget(None).require(large)
    with pytest.raises(ConfigError) as refused:
        Budget(needed - 1).require(large)
    said = str(refused.value)
    assert "a round of 10,000 clients takes" in said
    assert "313 for sketches" in said
    assert f"give it {-(-needed // MIB):,} MiB" in said
    Budget(-(-needed // MIB) * MIB).require(large)
    assert "sketch = " not in said  # None may be shorter.


def test_a_shorter_sketch_is_named_if_it_would_do():
    large = federation(10_000, d=100_000, sketch=20_000, **MULTI_KRUM)
    room = needs(large).total - 700 * MIB
    with pytest.raises(ConfigError, match="or sign terms with sketch = 10824"):
        Budget(room).require(large)
    Budget(room).require(federation(10_000, d=100_000, sketch=10_824, **MULTI_KRUM))


def test_rows_that_were_given_too_much_are_named():
    needed = needs(SMALL).total
    given = Budget(needed + MIB // 2, given=2**40)
    with pytest.raises(ConfigError, match=r"and 1 MiB for those.*or write memory_mib = 0"):
        given.require(SMALL)
    Budget(needed + MIB, given=2**40).require(SMALL)  # They have 720,000 bytes together.
