"""The formulas of the arithmetic example, against values worked out by hand or by other means."""

from __future__ import annotations

import math

import pytest
import torch
from arithmetic import grpo

RIGHT = torch.log(torch.tensor([[0.5, 0.25]]))


def test_advantages_are_relative_to_the_answers_to_the_same_prompt() -> None:
    advantages = grpo.group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 3.0, 1.0, 1.0, 1.0]), group_size=4)
    assert advantages.shape == (8,)
    half, third = 0.5 / math.sqrt(1 / 3), 1.5 / 1.0
    expected = torch.tensor([half, -half, -half, half, third, -0.5, -0.5, -0.5])
    torch.testing.assert_close(advantages, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_that_agrees_teaches_nothing(reward: float) -> None:
    assert grpo.group_advantages(torch.full((4,), reward), group_size=4).tolist() == [0.0] * 4


def test_equal_policies_have_minus_the_advantage_as_loss() -> None:
    loss = grpo.clipped_policy_loss(RIGHT, RIGHT, torch.tensor([2.0]), clip=0.2)
    assert loss.tolist() == [[-2.0, -2.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.5, 1.0, -1.2),  # a likelier good answer earns no more than 1 + clip
        (0.5, 1.0, -0.5),  # a less likely good answer is held to account in full
        (1.5, -1.0, 1.5),  # so is a likelier bad one
        (0.5, -1.0, 0.8),  # a less likely bad answer earns no more than 1 - clip
    ],
)
def test_the_ratio_is_clipped_only_where_that_is_pessimistic(ratio: float, advantage: float, loss: float) -> None:
    old = torch.tensor([[-1.0]])
    new = old + math.log(ratio)
    got = grpo.clipped_policy_loss(new, old, torch.tensor([advantage]), clip=0.2)
    torch.testing.assert_close(got, torch.tensor([[loss]]))


def test_a_clipped_answer_gives_no_gradient() -> None:
    old = torch.tensor([[-1.0], [-1.0]])
    new = (old + torch.tensor([[math.log(1.5)], [math.log(1.1)]])).requires_grad_()
    grpo.clipped_policy_loss(new, old, torch.ones(2), clip=0.2).sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([[0.0], [-1.1]]))


def test_the_kl_estimate_is_right_on_average_and_never_negative() -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.5, 0.3, 0.2]).log()
    estimates = grpo.kl_to_reference(policy, reference)
    true_kl = (policy.exp() * (policy - reference)).sum()
    torch.testing.assert_close((policy.exp() * estimates).sum(), true_kl)
    assert bool((estimates >= 0).all())
    assert grpo.kl_to_reference(policy, policy).tolist() == [0.0, 0.0, 0.0]


def test_the_loss_is_the_policy_loss_plus_the_weighted_divergence() -> None:
    new = RIGHT + 0.1
    loss, divergence = grpo.grpo_loss(new, RIGHT, RIGHT, torch.tensor([1.0]), clip=0.2, kl_weight=0.5)
    k3 = math.exp(-0.1) + 0.1 - 1
    assert divergence.item() == pytest.approx(k3, rel=1e-4)
    assert loss.item() == pytest.approx(-math.exp(0.1) + 0.5 * k3, rel=1e-4)
