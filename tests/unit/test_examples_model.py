"""The transformer of the arithmetic example."""

from __future__ import annotations

import pytest
import torch
from arithmetic import grpo, task
from arithmetic.model import KeyValues, ModelConfig, TinyLM
from arithmetic.recipe import Recipe

SMALL = ModelConfig(width=16, n_layers=2, n_heads=2)


@pytest.fixture
def model() -> TinyLM:
    torch.manual_seed(0)
    return TinyLM(SMALL)


@pytest.fixture
def prompts() -> torch.Tensor:
    return task.split_problems(n_held_out=32, seed=0).held_out


def test_the_demos_model_has_less_than_a_million_parameters() -> None:
    assert sum(weight.numel() for weight in TinyLM(Recipe().model).parameters()) < 1_000_000


def test_generation_with_remembered_keys_equals_thinking_anew_at_every_character(
    model: TinyLM, prompts: torch.Tensor
) -> None:
    tokens = prompts
    for _ in range(task.ANSWER_LENGTH):
        logits = model(tokens, [KeyValues() for _ in model.blocks])
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(model.generate(prompts, greedy=True), tokens[:, task.PROMPT_LENGTH :])


def test_log_probs_are_of_the_characters_in_the_response(model: TinyLM, prompts: torch.Tensor) -> None:
    responses = task.solve(prompts)
    log_probs = model.log_probs(prompts, responses)
    assert log_probs.shape == (32, task.ANSWER_LENGTH)
    logits = model(torch.cat([prompts, responses], dim=1), [KeyValues() for _ in model.blocks])
    second = logits[:, task.PROMPT_LENGTH].log_softmax(-1)
    torch.testing.assert_close(log_probs[:, 1], second[torch.arange(32), responses[:, 1]])


def test_a_character_does_not_change_what_was_thought_before_it(model: TinyLM, prompts: torch.Tensor) -> None:
    responses = task.solve(prompts)
    changed = responses.clone()
    changed[:, 1] = (changed[:, 1] + 1) % 10
    before, after = model.log_probs(prompts, responses), model.log_probs(prompts, changed)
    torch.testing.assert_close(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 2], after[:, 2])


def test_samples_follow_the_log_probs(model: TinyLM) -> None:
    prompt = task.encode_prompts(torch.tensor([12]), torch.tensor([34])).expand(20_000, -1)
    torch.manual_seed(1)
    first = model.generate(prompt, greedy=False)[:, 0]
    frequencies = torch.bincount(first, minlength=len(task.ALPHABET)) / len(first)
    logits = model(prompt[:1], [KeyValues() for _ in model.blocks])[0, -1]
    torch.testing.assert_close(frequencies, logits.softmax(-1), atol=0.02, rtol=0.0)


def test_an_update_makes_the_better_answer_likelier(model: TinyLM, prompts: torch.Tensor) -> None:
    batch = prompts[:1].repeat(2, 1)
    responses = torch.cat([task.solve(prompts[:1]), (task.solve(prompts[:1]) + 1) % 10])
    advantages = grpo.group_advantages(task.verify(batch, responses), group_size=2)
    old = model.log_probs(batch, responses).detach()
    loss, _ = grpo.grpo_loss(model.log_probs(batch, responses), old, old, advantages, clip=0.2, kl_weight=0.01)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    gained = (model.log_probs(batch, responses) - old).sum(dim=1)
    assert gained[0] > 0 > gained[1]
