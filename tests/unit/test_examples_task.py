"""The task of the arithmetic example: prompts, answers, the reward, and what is held out."""

from __future__ import annotations

import pytest
import torch
from arithmetic import task


def tokens(text: str) -> torch.Tensor:
    return torch.tensor([[task.ALPHABET.index(character) for character in text]])


@pytest.mark.parametrize(
    ("left", "right", "prompt", "answer"),
    [(47, 85, "47+85=", "231"), (0, 0, "00+00=", "000"), (99, 99, "99+99=", "891"), (5, 40, "05+40=", "540")],
)
def test_a_sum_is_written_with_its_lowest_digit_first(left: int, right: int, prompt: str, answer: str) -> None:
    prompts = task.encode_prompts(torch.tensor([left]), torch.tensor([right]))
    assert task.decode(prompts[0]) == prompt
    assert task.decode(task.solve(prompts)[0]) == answer
    assert prompts.shape == (1, task.PROMPT_LENGTH)
    assert task.solve(prompts).shape == (1, task.ANSWER_LENGTH)


def test_every_prompt_has_the_answer_that_python_gives() -> None:
    problems = task.split_problems(n_held_out=0, seed=3)
    for prompt, answer in zip(problems.train, task.solve(problems.train), strict=True):
        left, right = task.decode(prompt).rstrip("=").split("+")
        assert int(task.decode(answer)[::-1]) == int(left) + int(right)


@pytest.mark.parametrize(("response", "reward"), [("231", 1.0), ("230", 0.0), ("132", 0.0), ("+31", 0.0)])
def test_only_an_answer_that_is_right_in_every_character_earns_anything(response: str, reward: float) -> None:
    assert task.verify(tokens("47+85="), tokens(response)).tolist() == [reward]


def test_no_held_out_prompt_can_be_drawn_for_training() -> None:
    problems = task.split_problems(n_held_out=500, seed=1)
    train, held_out = ({task.decode(row) for row in rows} for rows in (problems.train, problems.held_out))
    assert (len(train), len(held_out)) == (9_500, 500)
    assert not train & held_out


def test_the_split_follows_the_seed() -> None:
    first, again, other = (task.split_problems(500, seed).held_out for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_draw_has_no_prompt_twice_and_follows_its_generator() -> None:
    prompts = task.split_problems(500, seed=0).train
    draws = [task.draw_prompts(prompts, 300, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert len({task.decode(row) for row in draws[0]}) == 300
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
