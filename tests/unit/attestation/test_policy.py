import tomllib
from typing import Any

import pytest

from ostraka.attestation.claims import Claims
from ostraka.attestation.policy import require_listed
from ostraka.errors import AttestationRefused, Refusal

CLAIMS = Claims("kind", (("a", b"\x0a"), ("b", b"\x0b")), report_data=b"", debug=False)

ACCEPTED: dict[str, Any] = {
    "all lists hold the value": ({"a": (b"\x0a",), "b": (b"\x0b",)}, ()),
    "one of several values will do": ({"a": (b"\x01", b"\x0a"), "b": ()}, ()),
    "an empty list that is not required": ({"a": (b"\x0a",), "b": ()}, ("a",)),
}

REFUSED: dict[str, Any] = {
    "no list holds anything": ({"a": (), "b": ()}, (), "ab"),
    "no list holds anything, and one is required": ({"a": (), "b": ()}, ("b",), "b"),
    "another value": ({"a": (b"\x0b",), "b": ()}, (), "a"),
    "the value in one list and not in the other": ({"a": (b"\x0a",), "b": (b"\x0a",)}, (), "b"),
    "a required list is empty": ({"a": (b"\x0a",), "b": ()}, ("a", "b"), "b"),
    "a longer value": ({"a": (b"\x0a\x00",), "b": ()}, (), "a"),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_listed_code_is_accepted(what):
    lists, required = ACCEPTED[what]
    require_listed(CLAIMS, "kind", lists, required)


@pytest.mark.parametrize("what", REFUSED)
def test_the_advice_lists_what_is_missing_and_keeps_what_is_there(what):
    lists, required, missing = REFUSED[what]
    with pytest.raises(AttestationRefused) as caught:
        require_listed(CLAIMS, "kind", lists, required)
    assert caught.value.reason is Refusal.MEASUREMENT
    said, advice = str(caught.value).split("write under [kind]:")
    assert all(f"{name} is {CLAIMS.measurement(name).hex()}" in said for name in missing)
    lines = tomllib.loads(advice)
    assert lines.keys() == set(missing)
    for name, values in lines.items():
        kept = [each.hex() for each in lists[name]]
        assert values == [*kept, CLAIMS.measurement(name).hex()]


ABSENT: dict[str, Any] = {
    "a list for what was not measured": ({"a": (b"\x0a",), "c": (b"\x0c",)}, ()),
    "what was not measured is required": ({"a": (b"\x0a",), "c": ()}, ("c",)),
    "no list holds anything": ({"c": ()}, ()),
}


@pytest.mark.parametrize("what", ABSENT)
def test_a_measurement_that_is_absent_is_named(what):
    lists, required = ABSENT[what]
    with pytest.raises(AttestationRefused, match=r"lists c .* is absent") as caught:
        require_listed(CLAIMS, "kind", lists, required)
    assert caught.value.reason is Refusal.MEASUREMENT


def test_a_measurement_that_is_absent_and_that_nobody_lists_does_not_matter():
    require_listed(CLAIMS, "kind", {"a": (b"\x0a",), "c": ()}, ("a",))


def test_following_the_advice_is_enough():
    lists = {"a": (), "b": (b"\x01",)}
    with pytest.raises(AttestationRefused) as caught:
        require_listed(CLAIMS, "kind", lists, ("a",))
    assert "b is 0b (the policy expects 01)" in str(caught.value)
    assert "a is 0a (the policy expects none)" in str(caught.value)
    lines = tomllib.loads(str(caught.value).split("write under [kind]:")[1])
    followed = {name: tuple(map(bytes.fromhex, values)) for name, values in lines.items()}
    require_listed(CLAIMS, "kind", lists | followed, ("a",))
