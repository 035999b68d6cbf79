"""Digits need nothing but scikit-learn's files."""

import subprocess
import sys

import numpy as np
import pytest

from ostraka.errors import ConfigError
from ostraka_lab import data
from ostraka_lab.data import dataset


def test_they_are_the_ones_that_scikit_learn_loads():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    ours = data.load("digits")
    images = np.concatenate([ours.train.images, ours.test.images])[:, 0]
    test = np.arange(len(theirs.target)) % 7 < 2
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    np.testing.assert_allclose(images * (16 / 255), theirs.images[order], atol=0.04)
    labels = np.concatenate([ours.train.labels, ours.test.labels])
    np.testing.assert_array_equal(labels, theirs.target[order])


def test_every_digit_is_about_as_frequent_in_both_parts():
    dataset = data.load("digits")
    assert dataset.shape == (1, 8, 8)
    assert (len(dataset.train), len(dataset.test)) == (1283, 514)
    for part in (dataset.train, dataset.test):
        counts = np.bincount(part.labels, minlength=10)
        assert counts.min() > 0.8 * len(part) / 10
        assert counts.max() < 1.2 * len(part) / 10


def test_the_stated_mean_and_deviation_are_those_of_the_training_images():
    dataset = data.load("digits")
    scaled = dataset.train.images / 255
    np.testing.assert_allclose(dataset.mean, [scaled.mean()], atol=1e-4)
    np.testing.assert_allclose(dataset.std, [scaled.std()], atol=1e-4)


def test_nothing_heavy_is_imported_to_load_them():
    code = "import sys; from ostraka_lab import data; data.load('digits'); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "torch", "PIL", "scipy"} & set(run.stdout.split())


def test_without_scikit_learn_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setattr(dataset, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="scikit-learn"):
        data.load("digits")
    assert not dataset.digits_installed()
