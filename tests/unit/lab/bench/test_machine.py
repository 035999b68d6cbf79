"""The machine, described."""

import json

from ostraka_lab.bench import machine


def test_what_a_reader_needs_to_know_is_there():
    told = machine.describe(threads=3)
    assert told["threads"] == 3
    assert told["cores"] >= 1
    assert 0 < told["available_gib"] <= told["memory_gib"]
    assert {"numpy", "cryptography"} <= set(told["packages"])
    assert all(told[name] for name in ("processor", "system", "python", "blas"))
    assert json.loads(json.dumps(told)) == told


def test_a_package_that_is_not_there_has_no_version():
    assert machine.installed("no-such-package-at-all") is None
