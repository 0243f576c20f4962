"""What is learnt: handwritten digits, by a small convolutional network.

The 1797 images of 8 x 8 pixels come with scikit-learn (UCI, Optical Recognition of Handwritten
Digits; Alpaydin and Kaynak, 1998). Which images a rank has in which step follows from the seed
alone, and so does where the parameters begin: two runs differ only by what carries the gradients.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn

BATCH = 32
"""Images a rank and step."""
TEST_IMAGES = 297
"""Kept back, to see what was learnt."""
RATE = 0.05
MOMENTUM = 0.9


def network(seed: int) -> nn.Module:
    """Return the untrained network: 0.3 million parameters, 1.1 MB of gradients a step."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


class Images:
    """The data set, in an order that the seed decides."""

    def __init__(self, seed: int) -> None:
        pixels, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(labels))
        scaled = torch.from_numpy((pixels[order] / 16).astype(np.float32)).view(-1, 1, 8, 8)
        named = torch.from_numpy(labels[order].astype(np.int64))
        self.test = scaled[:TEST_IMAGES], named[:TEST_IMAGES]
        self._pixels, self._labels = scaled[TEST_IMAGES:], named[TEST_IMAGES:]
        self._seed = seed

    def batch(self, step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images of a rank in a step, and what they show."""
        steps = len(self._labels) // (BATCH * size)
        epoch, turn = divmod(step, steps)
        order: NDArray[np.int64] = np.random.default_rng([self._seed, epoch]).permutation(
            len(self._labels)
        )
        begin = (turn * size + rank) * BATCH
        chosen = torch.from_numpy(order[begin : begin + BATCH])
        return self._pixels[chosen], self._labels[chosen]
