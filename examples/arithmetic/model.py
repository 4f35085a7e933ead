"""A character-level transformer of about 230,000 parameters that is quick on one CPU core."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arithmetic.task import ALPHABET, ANSWER_LENGTH, PROMPT_LENGTH

_EMBEDDING_STD = 0.1
_POSITION_STD = 0.02


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the transformer."""

    width: int = 96
    n_layers: int = 2
    n_heads: int = 4


class KeyValues:
    """Keys and values of one layer for the tokens seen so far, each ``(batch, heads, seen, width / heads)``."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._seen: tuple[Tensor, Tensor] | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new tokens' keys and values and return all of them."""
        if self._seen is not None:
            keys, values = torch.cat([self._seen[0], keys], dim=2), torch.cat([self._seen[1], values], dim=2)
        self._seen = keys, values
        return self._seen


class Block(nn.Module):
    """Pre-norm attention and a feed-forward layer, each around a residual."""

    def __init__(self, width: int, n_heads: int) -> None:
        """Create the weights."""
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: KeyValues) -> Tensor:
        """Map ``x`` of shape ``(batch, tokens, width)`` to the same shape; ``tokens`` is 1 once anything is seen."""
        batch, n_tokens, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, n_tokens, 3, self.n_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        keys, values = seen.extend(key, value)
        attended = F.scaled_dot_product_attention(query, keys, values, is_causal=n_tokens > 1)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, n_tokens, width))
        hidden: Tensor = self.narrow(F.gelu(self.widen(self.forward_norm(x)), approximate="tanh"))
        return x + hidden


class TinyLM(nn.Module):
    """A causal language model over ``ALPHABET`` for prompts and answers of fixed lengths."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the weights from torch's global random generator."""
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), config.width)
        nn.init.normal_(self.characters.weight, std=_EMBEDDING_STD)
        self.positions = nn.Parameter(torch.randn(PROMPT_LENGTH + ANSWER_LENGTH, config.width) * _POSITION_STD)
        self.blocks = nn.ModuleList(Block(config.width, config.n_heads) for _ in range(config.n_layers))
        self.norm, self.logits = nn.LayerNorm(config.width), nn.Linear(config.width, len(ALPHABET))

    def forward(self, tokens: Tensor, seen: list[KeyValues], n_seen: int = 0) -> Tensor:
        """Return the next character's logits, ``(batch, tokens, characters)``, after ``n_seen`` tokens in ``seen``."""
        x = self.characters(tokens) + self.positions[n_seen : n_seen + tokens.shape[1]]
        for block, layer_seen in zip(self.blocks, seen, strict=True):
            x = block(x, layer_seen)
        logits: Tensor = self.logits(self.norm(x))
        return logits

    def log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """Return log p of each response character given all before it, ``(batch, ANSWER_LENGTH)``."""
        logits = self(torch.cat([prompts, responses[:, :-1]], dim=1), [KeyValues() for _ in self.blocks])
        log_p = F.log_softmax(logits[:, PROMPT_LENGTH - 1 :], dim=-1)
        return log_p.gather(-1, responses.unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def generate(self, prompts: Tensor, greedy: bool) -> Tensor:
        """Answer every prompt, sampling at temperature 1 or taking the likeliest character.

        Returns:
            Token ids, ``(batch, ANSWER_LENGTH)``.
        """
        seen, n_seen, tokens, answer = [KeyValues() for _ in self.blocks], 0, prompts, []
        for _ in range(ANSWER_LENGTH):
            logits = self(tokens, seen, n_seen)[:, -1]
            n_seen += tokens.shape[1]
            tokens = logits.argmax(-1, keepdim=True) if greedy else torch.multinomial(F.softmax(logits, dim=-1), 1)
            answer.append(tokens)
        return torch.cat(answer, dim=1)
