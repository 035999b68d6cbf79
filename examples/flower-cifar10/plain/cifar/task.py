"""The data of one node, and the model. CIFAR-10 is read from its official binary files."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

_BATCHES, _IMAGES, _ROW = 5, 10_000, 3073  # files, images in each, and bytes of one
_BATCH_SIZE = 32


def new_model():
    """Return a small CNN with 136,874 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load(folder, partition, partitions, most):
    """Return images and labels of one node: every `partitions`th, and at most `most` of them."""
    files = [Path(folder).expanduser() / f"data_batch_{i + 1}.bin" for i in range(_BATCHES)]
    own = np.arange(partition, _BATCHES * _IMAGES, partitions)[:most]
    rows = np.concatenate(
        [_rows(file)[own[own // _IMAGES == i] % _IMAGES] for i, file in enumerate(files)]
    )
    return _tensors(rows)


def load_test(folder, most=2000):
    """Return images and labels that no node has."""
    return _tensors(_rows(Path(folder).expanduser() / "test_batch.bin")[:most])


def train(model, images, labels, *, lr):
    """Train for one epoch, and return the mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    losses = []
    for batch in torch.randperm(len(labels)).split(_BATCH_SIZE):
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    return float((model(images).argmax(1) == labels).float().mean())


def _rows(file):
    """Map the rows of a file: a label and 3,072 pixels each."""
    return np.memmap(file, np.uint8, "r", shape=(_IMAGES, _ROW))


def _tensors(rows):
    pixels = rows[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255
    return torch.from_numpy((pixels - 0.47) / 0.25), torch.from_numpy(rows[:, 0].astype(np.int64))
