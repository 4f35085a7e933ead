"""Sums of two-digit numbers as strings of characters, and the reward that verifies an answer.

A prompt is ``"47+85="``; its answer is the three digits of the sum, lowest digit first (``"231"`` for 132), so that a
carry is known before the digit that needs it. There are 10,000 prompts; those held out are drawn first and no
training batch can contain them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALPHABET = "0123456789+="
PROMPT_LENGTH = 6
ANSWER_LENGTH = 3
_N_NUMBERS = 100
_PLUS, _EQUALS = ALPHABET.index("+"), ALPHABET.index("=")


@dataclass(frozen=True)
class Problems:
    """All prompts, split once: ``train`` and ``held_out`` have no prompt in common.

    Attributes:
        train: token ids, ``(n_train, PROMPT_LENGTH)``.
        held_out: token ids, ``(n_held_out, PROMPT_LENGTH)``.
    """

    train: Tensor
    held_out: Tensor


def split_problems(n_held_out: int, seed: int) -> Problems:
    """Shuffle all prompts by ``seed`` and set ``n_held_out`` of them aside."""
    order = torch.randperm(_N_NUMBERS**2, generator=torch.Generator().manual_seed(seed))
    prompts = encode_prompts(order // _N_NUMBERS, order % _N_NUMBERS)
    return Problems(train=prompts[n_held_out:], held_out=prompts[:n_held_out])


def draw_prompts(prompts: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw ``n`` different rows of ``prompts``, shape ``(n, PROMPT_LENGTH)``."""
    return prompts[torch.randperm(len(prompts), generator=generator)[:n]]


def encode_prompts(left: Tensor, right: Tensor) -> Tensor:
    """Write the sums ``left + right`` (both ``(n,)``, 0 to 99) as token ids, ``(n, PROMPT_LENGTH)``."""
    plus, equals = torch.full_like(left, _PLUS), torch.full_like(left, _EQUALS)
    return torch.stack([left // 10, left % 10, plus, right // 10, right % 10, equals], dim=1)


def solve(prompts: Tensor) -> Tensor:
    """Return the right answers of ``prompts`` as token ids, ``(n, ANSWER_LENGTH)``, lowest digit first."""
    total = 10 * (prompts[:, 0] + prompts[:, 3]) + prompts[:, 1] + prompts[:, 4]
    return torch.stack([total % 10, total // 10 % 10, total // 100], dim=1)


def verify(prompts: Tensor, responses: Tensor) -> Tensor:
    """Return the reward of each response, ``(n,)``: 1.0 where every character is right, else 0.0."""
    return (responses == solve(prompts)).all(dim=1).float()


def decode(tokens: Tensor) -> str:
    """Return one row of token ids, ``(length,)``, as text."""
    return "".join(ALPHABET[int(token)] for token in tokens)
