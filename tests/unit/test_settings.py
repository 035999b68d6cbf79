"""TOML into dataclasses: what is read, and what the errors say and where."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.encoding import Key
from ostraka.errors import ConfigError
from ostraka.settings import parse


@dataclass(frozen=True)
class Rules:
    f: int
    share: float = 0.5
    verify: bool = True
    kind: str = "plain"
    clip_norm: float | None = None

    def __post_init__(self):
        if self.f < 0:
            raise ConfigError(f"f cannot be negative; got f={self.f}")
        if self.kind == "wrong":
            raise ConfigError("nothing that is mentioned here is a key")


@dataclass(frozen=True)
class Member:
    name: str
    key: Key


@dataclass(frozen=True)
class Layout:
    terms: Rules
    blob: bytes = b""
    names: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    client: tuple[Member, ...] = ()
    more: Rules | None = None


@dataclass(frozen=True)
class Loose:
    """Everything has a default, so that random documents get far."""

    terms: Rules = field(default_factory=lambda: Rules(1))
    names: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    client: tuple[Member, ...] = ()


def read(text, layout=Layout):
    return parse(text, "file.toml").read(layout)


def test_everything_is_read_by_its_declared_type():
    read_back = read(
        f"""
        blob = "00fF"
        names = ["a", "b"]
        keys = ["{"01" * 32}"]
        more = {{ f = 3 }}
        [terms]
        f = 2
        share = 1
        clip_norm = 2.5
        [[client]]
        name = "c"
        key = "{"02" * 32}"
        """
    )
    assert read_back == Layout(
        Rules(2, share=1.0, clip_norm=2.5),
        blob=b"\x00\xff",
        names=("a", "b"),
        keys=(bytes([1]) * 32,),
        client=(Member("c", bytes([2]) * 32),),
        more=Rules(3),
    )
    assert isinstance(read_back.terms.share, float)


TERMS = "[terms]\nf = 1\n"
MISTAKES = {
    "a text for a whole number": (
        '[terms]\nf = "three"',
        'file.toml, line 2: terms.f is a whole number; got "three"',
    ),
    "a truth for a whole number": (
        "[terms]\nf = true",
        "file.toml, line 2: terms.f is a whole number; got true",
    ),
    "a fraction for a whole number": (
        "[terms]\nf = 1.0",
        "file.toml, line 2: terms.f is a whole number; got 1.0",
    ),
    "a whole number of 65 bits": (
        f"[terms]\nf = {2**63}",
        "file.toml, line 2: terms.f is a number of at most 64 bits",
    ),
    "a text for a number": (
        TERMS + 'share = "half"',
        'file.toml, line 3: terms.share is a number; got "half"',
    ),
    "a number for a truth": (
        TERMS + "verify = 1",
        "file.toml, line 3: terms.verify is true or false; got 1",
    ),
    "a list for a text": (
        TERMS + "kind = [1]",
        "file.toml, line 3: terms.kind is a text in quotes; got a list",
    ),
    "a date for an optional number": (
        TERMS + "clip_norm = 2020-01-01",
        'file.toml, line 3: terms.clip_norm is a number; got "2020-01-01"',
    ),
    "a text for a list": (
        'names = "a"\n' + TERMS,
        'file.toml, line 1: names is a list; got "a"',
    ),
    "an item of the wrong type, in its own line": (
        'names = [ # some\n  "a",\n\n  3,\n]\n' + TERMS,
        "file.toml, line 4: names[1] is a text in quotes; got 3",
    ),
    "a number for a table": ("terms = 7", "file.toml, line 1: terms is a table; got 7"),
    "an array of tables for a table": (
        "[[terms]]\nf = 1",
        "file.toml, line 1: terms is a table; got a list",
    ),
    "a table for an array of tables": (
        TERMS + "[client]\nname = 'c'",
        "file.toml, line 3: client is a list; got a table",
    ),
    "a missing key": ("\n[terms]\n", "file.toml, line 2: terms.f is missing"),
    "a missing table": ("", "file.toml: the table [terms] is missing"),
    "a missing key of the second of many": (
        f"{TERMS}[[client]]\nname = 'a'\nkey = '{'00' * 32}'\n\n[[client]]\nname = 'b'\n",
        "file.toml, line 7: client[1].key is missing",
    ),
    "a misspelt key": (
        TERMS + "verfy = true",
        "file.toml, line 3: terms.verfy is not known; did you mean verify?",
    ),
    "a misspelt table": (
        "[termz]\nf = 1",
        "file.toml, line 1: termz is not known; did you mean terms?",
    ),
    "a key like no other": (
        "[terms]\nf = 1\nxxx = true",
        "file.toml, line 3: terms.xxx is not known; known here: f, share, verify, kind, clip_norm",
    ),
    "a key of odd characters": (
        '"a\\nb" = 1\n' + TERMS,
        'file.toml: "a\\nb" is not known; known here: terms, blob, names, keys, client, more',
    ),
    "a key in a dotted line": (
        "terms.f = 1\nterms.shares = 2",
        "file.toml, line 2: terms.shares is not known; did you mean share?",
    ),
    "a key in an inline table": (
        "[terms]\nf = 1\n[more]\n[[client]]\n",
        "file.toml, line 3: more.f is missing",
    ),
    "too short a key": (
        f"keys = [\n'{'00' * 32}',\n'{'00' * 31}0']\n" + TERMS,
        "file.toml, line 3: keys[1] is 64 hex digits; got 63",
    ),
    "half a byte": (
        "blob = 'abc'\n" + TERMS,
        "file.toml, line 1: blob is an even number of hex digits; got 3",
    ),
    "no hex digits": (
        "blob = 'xy'\n" + TERMS,
        "file.toml, line 1: blob is an even number of hex digits; got others among 2",
    ),
    "a number for hex digits": (
        "keys = [12]\n" + TERMS,
        "file.toml, line 1: keys[0] is 64 hex digits in quotes; got 12",
    ),
    "what the dataclass refuses, at the key that it mentions": (
        "[terms]\nkind = 'plain'\nf = -1",
        "file.toml, line 3: f cannot be negative; got f=-1",
    ),
    "what the dataclass refuses without mentioning a key": (
        "\n[terms]\nkind = 'wrong'\nf = 1",
        "file.toml, line 2: nothing that is mentioned here is a key",
    ),
    "no value": ("[terms]\nf =\n", "file.toml, line 2: Invalid value"),
    "an open text": (
        "[terms]\nf = 1\nkind = 'x\n",
        'file.toml, line 3: Expected "\'"',
    ),
    "a number in words": (
        "[rounds]\ncount = ten\n",
        "file.toml, line 2: Invalid value of count: numbers are digits, and words are in quotes",
    ),
    "an open list": ("[terms]\nf = [1,\n", "file.toml, line 2: Invalid value"),
    "a table twice": (TERMS + TERMS, "file.toml, line 3: Cannot declare ('terms',) twice"),
    "a number of 5000 digits": (
        "a = " + "1" * 5000,
        "file.toml: a number is too long, or lists are too deep",
    ),
    "lists in lists in lists": (
        "a = " + "[" * 10_000,
        "file.toml: a number is too long, or lists are too deep",
    ),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told_with_their_file_and_line(text, message):
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert str(refused.value).startswith(message)


def test_a_long_value_is_cut_short():
    with pytest.raises(ConfigError) as refused:
        read(f"[terms]\nf = '{'x' * 10_000}'")
    assert len(str(refused.value)) < 200


def test_a_private_key_in_the_wrong_place_is_not_repeated():
    secret = "5ec2e7" * 12
    with pytest.raises(ConfigError) as refused:
        read(f"keys = ['{secret}']\n[terms]\nf = 1")
    assert "5ec2e7" not in str(refused.value)


LINES = '''\
a = 1  # [not]
"b" = """
x = 3
[not] # this
"""
c = \'\'\'
]\'\'\'
[t] # "
k = [ # ]
  "]", # b
  [1, 2,
   3], {x = 1},
]
d.e . "f" = 1
g = { h = 1, i = [
  1 ] }
[[client]]
key = 1
[[client]]
key = 2
[client.sub]
z = 1
[[client.deep]]
y = 1
[[client.deep]]
y = 2
[[client]]
key = 'three'
'''


def test_lines_are_found_through_strings_comments_lists_and_arrays_of_tables():
    expected = {
        "a": 1, "b": 2, "c": 6,
        "t": 8, "t.k": 9, "t.k[0]": 10, "t.k[1]": 11, "t.k[2]": 12, "t.d.e.f": 14, "t.g": 15,
        "client": 17, "client[0]": 17, "client[0].key": 18,
        "client[1]": 19, "client[1].key": 20,
        "client[1].sub": 21, "client[1].sub.z": 22,
        "client[1].deep": 23, "client[1].deep[0]": 23, "client[1].deep[0].y": 24,
        "client[1].deep[1]": 25, "client[1].deep[1].y": 26,
        "client[2]": 27, "client[2].key": 28,
    }  # fmt: skip
    assert parse(LINES, "file.toml").lines == expected


def test_lines_are_the_same_with_the_line_ends_of_another_system():
    assert parse(LINES.replace("\n", "\r\n"), "f").lines == parse(LINES, "f").lines


def outcome(text, layout):
    try:
        return read(text, layout)
    except ConfigError as error:
        return error


@given(st.text())
def test_any_text_is_read_or_refused_as_a_config_error(text):
    outcome(text, Loose)


SIGNS = "[ ] [[ ]] = ' \" \"\"\" ''' . , { } # \\ terms client names keys f key 1 -2 1e400 nan é"
WORDS = st.sampled_from([*SIGNS.split(), " ", "\n", "\r", f"'{'00' * 32}'", "2020-01-01"])


@given(st.lists(WORDS, max_size=40).map("".join))
def test_texts_of_toml_s_own_words_are_read_or_refused_as_config_errors(text):
    outcome(text, Loose)


KEYS = st.sampled_from(["terms", "client", "names", "keys", "f", "share", "kind", "name", "key"])
VALUES = st.recursive(
    st.sampled_from(["1", "-1", "true", "inf", "nan", "'x'", "12:00:00", f"'{'ab' * 32}'", "1e9"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.tuples(KEYS, inner).map(lambda pair: f"{{ {pair[0]} = {pair[1]} }}")
    ),
    max_leaves=5,
)
STATEMENTS = (
    st.tuples(KEYS, VALUES).map(" = ".join)
    | KEYS.map("[{}]".format)
    | KEYS.map("[[{}]]".format)
    | st.tuples(KEYS, KEYS).map(lambda pair: f"[{'.'.join(pair)}]")
)


@given(st.lists(STATEMENTS, max_size=12).map("\n".join))
def test_valid_documents_of_any_shape_are_read_or_refused_as_config_errors(text):
    outcome(text, Loose)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=8), st.lists(st.sampled_from(["", "# a"])))
def test_the_line_of_every_key_is_found(pairs, padding):
    """Under tables t0, t1, ... so that no key is declared twice."""
    lines = list(padding)
    expected: dict[str, int] = {}
    for i, (key, value) in enumerate(pairs):
        lines += [f"[t{i}]", f"{key} = {value}"]
        expected |= {f"t{i}": len(lines) - 1, f"t{i}.{key}": len(lines)}
    found = parse("\n".join(lines), "f").lines
    assert {path: found[path] for path in expected} == expected
