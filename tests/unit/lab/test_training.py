import math
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from torch.nn import functional

from ostraka.client.momentum import is_statistic
from ostraka.errors import ConfigError
from ostraka.model_file import named_tensors
from ostraka_lab import models
from ostraka_lab.models import build
from ostraka_lab.training import Descent, Pixels, Recipe, Trainer, evaluate

MEAN, STD = (0.4,), (0.3,)
SHAPE = (1, 8, 8)
STEPS = Recipe(steps=2, batch=8)


def examples(n=20, shape=SHAPE, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *shape), np.uint8)
    return images, rng.integers(0, 10, n)


def make(name="mlp", recipe=STEPS, n=20):
    model = build(name, shape=SHAPE, classes=10, seed=0)
    images, labels = examples(n)
    return Trainer(model, images, labels, MEAN, STD, recipe)


def score(model, vector):
    images, labels = examples()
    return evaluate(model, vector, images, labels, MEAN, STD)


def start(trainer):
    """A model to start from, other than the one that the trainer's model happens to be."""
    return np.float32(0.5) * models.vector(trainer.model)


# What one step is, by the formula.


def test_a_step_is_the_gradient_of_the_mean_loss_times_the_learning_rate():
    trainer = make(recipe=Recipe(epochs=1, batch=100, learning_rate=0.5, weight_decay=0.1))
    at = start(trainer)
    trained = trainer.update(at, seed=[0])
    images, labels = examples()
    models.set_vector(trainer.model, at)
    trainer.model.zero_grad()
    pixels = (torch.tensor(images).float() / 255 - MEAN[0]) / STD[0]
    loss = functional.cross_entropy(trainer.model(pixels), torch.tensor(labels))
    loss.backward()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.sub_(0.5 * (parameter.grad + 0.1 * parameter))
    expected = models.vector(trainer.model) - at
    np.testing.assert_allclose(trained.update, expected, rtol=1e-4, atol=1e-6)
    assert trained.loss == pytest.approx(loss.item(), rel=1e-5)
    assert trained.update.dtype == np.float32


def test_a_client_reports_what_it_saw_and_nothing_if_it_does_not_know():
    trainer = make(recipe=Recipe(epochs=1, batch=100))
    at = start(trainer)
    trained, before = trainer.update(at, seed=[0]), score(trainer.model, at)
    reported = trained.metrics
    assert reported is not None
    assert reported["accuracy"] == before.accuracy
    assert reported["loss"] == pytest.approx(before.loss, rel=1e-5)
    assert reported["examples"] == 20
    assert replace(trained, loss=math.nan).metrics is None
    assert replace(trained, accuracy=None).metrics is None


def test_steps_are_those_of_torch():
    recipe = Recipe(steps=1, learning_rate=0.3, momentum=0.9, weight_decay=0.01)
    ours, theirs = (torch.nn.Parameter(torch.arange(6.0)) for _ in range(2))
    descent = Descent([ours], recipe)
    optimiser = torch.optim.SGD([theirs], lr=0.3, momentum=0.9, weight_decay=0.01)
    for step in range(4):
        gradient = torch.sin(torch.arange(6.0) * step)
        descent.step([gradient])
        theirs.grad = gradient
        optimiser.step()
    torch.testing.assert_close(ours, theirs)


def test_what_is_held_stays_after_every_step():
    """Not only after the last one: the other coordinates are trained with it as it was."""
    recipe = Recipe(epochs=1, batch=5, learning_rate=0.5)
    trainer = make(recipe=recipe)
    at = start(trainer)
    held = np.random.default_rng(0).permutation(at.size)[: at.size // 3]
    update = trainer.update(at, seed=[0], held=held).update
    assert not update[held].any()
    free = trainer.update(at, seed=[0]).update
    others = np.setdiff1d(np.arange(at.size), held)
    assert np.abs(update[others] - free[others]).max() > 1e-3
    one = make(recipe=Recipe(steps=1, batch=5, learning_rate=0.5))
    step, whole = (one.update(at, seed=[0], held=each).update for each in (held, None))
    whole[held] = 0
    np.testing.assert_array_equal(step, whole)


def test_momentum_starts_from_zero_in_every_round():
    trainer = make(recipe=Recipe(steps=3, batch=8, momentum=0.9))
    at = start(trainer)
    first, again = (trainer.update(at, seed=[0]).update for _ in range(2))
    np.testing.assert_array_equal(first, again)
    without = make(recipe=Recipe(steps=3, batch=8)).update(at, seed=[0]).update
    assert np.linalg.norm(first) > 1.3 * np.linalg.norm(without)


def test_pixels_are_normalised_by_channel():
    images, _ = examples(3, (2, 4, 4))
    mean, std = np.array([0.1, 0.6]), np.array([0.2, 0.5])
    expected = (images / 255 - mean[:, None, None]) / std[:, None, None]
    given = Pixels(mean.tolist(), std.tolist()).tensor(images)
    assert given.dtype == torch.float32
    np.testing.assert_allclose(given.numpy(), expected, atol=1e-5)


# Which examples are seen.


@pytest.fixture
def seen(monkeypatch):
    """The batches that were trained on, as the bytes of their images."""
    batches = []
    original = Pixels.tensor

    def tensor(self, images):
        batches.append([image.tobytes() for image in images])
        return original(self, images)

    monkeypatch.setattr(Pixels, "tensor", tensor)
    return batches


def test_an_epoch_sees_every_example_once_the_short_last_batch_included(seen):
    trainer = make(recipe=Recipe(epochs=3, batch=8), n=20)
    assert trainer.update(start(trainer), seed=[0]).examples == 60
    assert list(map(len, seen)) == [8, 8, 4] * 3
    everything = sorted(image.tobytes() for image in examples(20)[0])
    walks = [[*chain(*seen[at : at + 3])] for at in (0, 3, 6)]
    assert all(sorted(walk) == everything for walk in walks)
    assert walks[0] != walks[1] != walks[2]


def test_steps_are_the_first_batches_of_such_walks(seen):
    trainer = make(recipe=Recipe(steps=4, batch=8), n=20)
    assert trainer.update(start(trainer), seed=[0]).examples == 28
    assert list(map(len, seen)) == [8, 8, 4, 8]


def test_other_seeds_see_other_batches(seen):
    trainer = make(recipe=Recipe(steps=1, batch=8))
    for seed in ([0, 1, 1], [0, 1, 2], [0, 2, 1], (0, 1, 1)):
        trainer.update(start(trainer), seed=seed)
    assert seen[0] == seen[3]
    assert len({tuple(batch) for batch in seen}) == 3


# The same update, regardless of what else happens.


def test_the_same_start_and_seed_give_the_same_bytes_whatever_ran_before():
    trainer = make("efficientnet-b0")
    at = start(trainer)
    first = trainer.update(at, seed=[3, 1])
    other = trainer.update(at, seed=[3, 2])
    torch.rand(7)
    score(trainer.model, other.update)
    again = trainer.update(at, seed=[3, 1])
    assert first.update.tobytes() == again.update.tobytes()
    assert first.loss == again.loss
    assert first.update.tobytes() != other.update.tobytes()


def test_training_leaves_the_generator_of_the_process_alone():
    before = torch.random.get_rng_state()
    trainer = make("efficientnet-b0")
    trainer.update(start(trainer), seed=[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_trainers_in_threads_do_not_disturb_each_other():
    trainers = [make("efficientnet-b0") for _ in range(3)]
    at = start(trainers[0])
    alone = [trainer.update(at, seed=[i]).update for i, trainer in enumerate(trainers)]
    together = [np.empty(0)] * len(trainers)

    def train(i):
        together[i] = trainers[i].update(at, seed=[i]).update

    threads = [threading.Thread(target=train, args=(i,)) for i in range(len(trainers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.slow
def test_another_process_computes_the_same():
    code = """
import hashlib, runpy, sys
tests = runpy.run_path(sys.argv[1])
trainer = tests["make"]("efficientnet-b0")
update = trainer.update(tests["start"](trainer), seed=[5]).update
print(hashlib.sha256(update.tobytes()).hexdigest())
"""
    command = [sys.executable, "-c", code, __file__]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = [run.communicate()[0] for run in runs]
    assert digests[0] == digests[1] != ""


# What goes wrong.


def test_a_training_that_diverges_says_so():
    trainer = make(recipe=Recipe(steps=4, learning_rate=1e30))
    trained = trainer.update(start(trainer), seed=[0])
    assert not np.isfinite(trained.update).all()
    assert np.isnan(trained.loss)


def test_a_start_that_is_not_finite_gives_such_an_update():
    trainer = make()
    trained = trainer.update(np.full(4810, np.inf, np.float32), seed=[0])
    assert np.isnan(trained.update).all()
    assert score(trainer.model, trained.update).accuracy < 0.5


def test_an_example_that_is_left_over_joins_the_last_batch(seen):
    trainer = make("efficientnet-b0", Recipe(epochs=1, batch=4), n=9)
    assert np.isfinite(trainer.update(start(trainer), seed=[0]).update).all()
    assert list(map(len, seen)) == [4, 5]


@pytest.mark.parametrize(("n", "batch"), [(1, 8), (3, 1)])
def test_batch_norm_takes_its_running_statistics_for_a_batch_of_one(n, batch):
    trainer = make("efficientnet-b0", Recipe(epochs=1, batch=batch), n=n)
    trained = trainer.update(start(trainer), seed=[0])
    assert trained.examples == n
    assert np.isfinite(trained.update).all()
    parts = named_tensors(models.manifest(trainer.model), trained.update)
    assert any(part.any() for name, part in parts.items() if not is_statistic(name))
    assert not any(part.any() for name, part in parts.items() if is_statistic(name))


WRONG_RECIPES = {
    "neither steps nor epochs": ({}, "steps or of epochs"),
    "both": ({"steps": 1, "epochs": 1}, "steps or of epochs"),
    "no step": ({"steps": 0}, "steps must be at least 1"),
    "no epoch": ({"epochs": 0}, "epochs must be at least 1"),
    "an empty batch": ({"steps": 1, "batch": 0}, "batch must be at least 1"),
    "standing still": ({"steps": 1, "learning_rate": 0.0}, "learning_rate must be above 0"),
    "an infinite rate": (
        {"steps": 1, "learning_rate": float("inf")},
        "learning_rate must be above 0",
    ),
    "a rate that is no number": (
        {"steps": 1, "learning_rate": float("nan")},
        "learning_rate must be above 0",
    ),
    "momentum that never ends": ({"steps": 1, "momentum": 1.0}, "momentum must be"),
    "negative momentum": ({"steps": 1, "momentum": -0.1}, "momentum must be"),
    "growth": ({"steps": 1, "weight_decay": -1.0}, "weight_decay"),
}


@pytest.mark.parametrize(("settings", "said"), WRONG_RECIPES.values(), ids=WRONG_RECIPES)
def test_a_recipe_that_cannot_work_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Recipe(**settings)


@pytest.mark.parametrize(("images", "labels"), [(0, 0), (3, 2)])
def test_a_trainer_needs_images_with_labels(images, labels):
    model = build("mlp", shape=SHAPE, classes=10, seed=0)
    with pytest.raises(ConfigError, match="each image needs a label"):
        Trainer(model, examples(images)[0], examples(labels)[1], MEAN, STD, STEPS)


def test_a_start_of_another_model_is_refused():
    with pytest.raises(ConfigError, match="the model has 4810 values"):
        make().update(np.zeros(4811, np.float32), seed=[0])


def test_data_that_cannot_be_written_to_will_do():
    images, labels = examples()
    images.setflags(write=False)
    labels.setflags(write=False)
    model = build("mlp", shape=SHAPE, classes=10, seed=0)
    trainer = Trainer(model, images, labels, MEAN, STD, STEPS)
    update = trainer.update(start(trainer), seed=[0]).update
    evaluate(model, update, images, labels, MEAN, STD)


# What a model is worth.


def test_a_score_is_that_of_the_formula_whatever_the_batch():
    model = build("efficientnet-b0", shape=SHAPE, classes=10, seed=0)
    vector, (images, labels) = models.vector(model), examples(30)
    model.eval()
    with torch.inference_mode():
        outputs = model((torch.tensor(images).float() / 255 - MEAN[0]) / STD[0])
    chances = outputs.double().softmax(dim=1).numpy()
    for batch in (7, 30, 100):
        score = evaluate(model.train(), vector, images, labels, MEAN, STD, batch=batch)
        assert score.accuracy == np.mean(outputs.argmax(dim=1).numpy() == labels)
        assert score.loss == pytest.approx(-np.log(chances[np.arange(30), labels]).mean(), rel=1e-4)


def test_evaluation_changes_nothing():
    model = build("efficientnet-b0", shape=SHAPE, classes=10, seed=0)
    vector = models.vector(model)
    score(model, vector)
    np.testing.assert_array_equal(models.vector(model), vector)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_model_learns_what_can_be_learned(name):
    """Each class is one image, with noise."""
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, (10, *SHAPE))
    labels = rng.integers(0, 10, 300)
    noisy = centres[labels] + rng.normal(scale=40, size=(300, *SHAPE))
    images = np.clip(noisy, 0, 255).astype(np.uint8)
    model = build(name, shape=SHAPE, classes=10, seed=0)
    trainer = Trainer(model, images[:200], labels[:200], MEAN, STD, Recipe(epochs=4, batch=16))
    at = models.vector(model)
    after = at + trainer.update(at, seed=[0]).update
    before = evaluate(model, at, images[200:], labels[200:], MEAN, STD)
    assert before.accuracy < 0.4
    assert evaluate(model, after, images[200:], labels[200:], MEAN, STD).accuracy > 0.9
