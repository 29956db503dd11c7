"""A recurrent network over characters."""

from __future__ import annotations

import torch
from torch import nn


class NextCharacter(nn.Module):
    """Reads a text, character by character, and gives a score to each character that may come next.

    Parameters
    ----------
    classes
        The number of different characters.
    hidden
        Width of its state.
    embedding
        Number of coordinates that represent a character.
    """

    def __init__(self, classes: int, hidden: int, embedding: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.states = nn.GRU(embedding, hidden, batch_first=True)
        self.scores = nn.Linear(hidden, classes)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """The scores after the last character of each text."""
        letters = self.embedding(texts)
        # A first state that is made from the input lets torch.func take gradients of single records.
        states, _ = self.states(letters, letters.new_zeros(1, len(letters), self.states.hidden_size))
        scores: torch.Tensor = self.scores(states[:, -1])
        return scores
