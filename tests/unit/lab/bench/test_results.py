"""A folder of results."""

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench import results


def test_what_is_saved_is_found_again_by_its_name(tmp_path):
    folder = tmp_path / "new" / "folder"
    results.save(folder, "peers", {"clients": 8})
    results.save(folder, "peers", {"clients": 9})
    results.save(folder, "scale", {"cells": []})
    found = results.load(folder)
    assert list(found) == ["peers", "scale"]
    assert found["peers"]["clients"] == 9
    assert found["peers"]["measured"].endswith("UTC")


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"layout": 0}'])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    (tmp_path / "paper.json").write_text(text)
    with pytest.raises(ConfigError, match=r"paper\.json is no result"):
        results.load(tmp_path)
