from typing import Any

import numpy as np
import pytest
import torch

from ostraka.client.results import flatten
from ostraka.config import Manifest, Tensor
from ostraka.errors import ConfigError

MANIFEST = Manifest((Tensor("w", (2, 3)), Tensor("scale", ()), Tensor("b", (2,))))
VECTOR = np.arange(9, dtype=np.float32)
ARRAYS = {"w": VECTOR[:6].reshape(2, 3), "scale": VECTOR[6], "b": VECTOR[7:]}


@pytest.mark.parametrize(
    "given",
    [
        VECTOR,
        VECTOR.tolist(),
        VECTOR.astype(np.float64),
        VECTOR.astype(">f4"),
        VECTOR.astype(int),
        np.stack([VECTOR, VECTOR], axis=1)[:, 0],
        torch.from_numpy(VECTOR),
        ARRAYS,
        dict(reversed(ARRAYS.items())),
        {name: torch.tensor(each) for name, each in ARRAYS.items()},
        {name: np.asarray(each, np.float64) for name, each in ARRAYS.items()},
        {**ARRAYS, "w": np.asfortranarray(ARRAYS["w"])},
    ],
)
def test_one_vector_whatever_it_was(given):
    flat = flatten(given, MANIFEST)
    assert flat.dtype == np.dtype("<f4")
    assert flat.flags.c_contiguous
    assert flat.tolist() == VECTOR.tolist()
    assert not np.shares_memory(flat, VECTOR)


REFUSED: dict[str, tuple[Any, str]] = {
    "a tensor is missing": ({"w": ARRAYS["w"], "scale": 1}, "lacks tensor 'b'"),
    "nothing is there": ({}, "lacks tensor 'w', 'scale', 'b'"),
    "a tensor too many": ({**ARRAYS, "running_mean": 0}, "'running_mean', which the model has not"),
    "many tensors too many": (
        {**ARRAYS, **dict.fromkeys("cdefg", 0)},
        "'c', 'd', 'e' and 2 more",
    ),
    "another shape": ({**ARRAYS, "w": np.ones((3, 2))}, r"'w' is \(2, 3\); got \(3, 2\)"),
    "a vector for a scalar": ({**ARRAYS, "scale": [1.0]}, "'scale' is"),
    "words": ({**ARRAYS, "b": ["x", "y"]}, "'b' holds <U1"),
    "complex numbers": ({**ARRAYS, "b": [1j, 2]}, "'b' holds complex"),
    "objects": ({**ARRAYS, "b": [None, 2]}, "'b' holds object"),
    "ragged rows": ({**ARRAYS, "w": [[1, 2], [3]]}, "'w' is no array"),
    "a tensor with a gradient": (
        {**ARRAYS, "b": torch.ones(2, requires_grad=True)},
        "'b' is no array.*detach",
    ),
    "a NaN": ({**ARRAYS, "b": [np.nan, 0]}, "'b' holds a NaN"),
    "an infinity": ({**ARRAYS, "scale": np.inf}, "'scale' holds a NaN, an infinity"),
    "a number beyond float32": ({**ARRAYS, "scale": 1e39}, "beyond float32"),
    "other names": (
        {"weights": VECTOR},
        "lacks tensor .* and has tensor 'weights', which the model has not: got 'weights'; "
        "expected 'w', 'scale', 'b', as in model.arrays",
    ),
    "a short vector": (VECTOR[:-1], r"'update' is \(9,\); got \(8,\)"),
    "a matrix": (VECTOR.reshape(3, 3), r"got \(3, 3\)"),
    "a number": (3.0, r"got \(\)"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_an_update_of_another_form_is_refused_by_the_tensor_s_name(sentence):
    given, match = REFUSED[sentence]
    with pytest.raises(ConfigError, match=match):
        flatten(given, MANIFEST)
