"""The formulas of group relative policy optimisation as functions of tensors.

Sources: GRPO is "DeepSeekMath" (Shao et al. 2024, arXiv 2402.03300, section 4.1); the clipped ratio is "Proximal Policy
Optimization Algorithms" (Schulman et al. 2017, arXiv 1707.06347, equation 7); the estimate of the KL divergence is k3
of "Approximating KL Divergence" (Schulman 2020, joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

import torch
from torch import Tensor

_STD_FLOOR = 1e-4


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """Normalise each reward by the mean and the deviation of the rewards of its own prompt.

    Args:
        rewards: ``(n_prompts * group_size,)``, the responses to one prompt side by side.
        group_size: responses per prompt, at least 2.

    Returns:
        Advantages, ``(n_prompts * group_size,)``; zero where all responses to a prompt earned the same.
    """
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + _STD_FLOOR)).flatten()


def clipped_policy_loss(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return PPO's pessimistic loss of each character, ``(batch, length)``.

    Args:
        log_probs: of the policy in training, ``(batch, length)``.
        old_log_probs: of the policy that the batch was sampled from, ``(batch, length)``.
        advantages: one per response, ``(batch,)``.
        clip: how far the ratio of the two may move from 1 before it earns nothing more.
    """
    ratio = (log_probs - old_log_probs).exp()
    gain = advantages.unsqueeze(-1)
    return -torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)


def kl_to_reference(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Estimate KL(policy || reference) at each sampled character, ``(batch, length)``: k3, never negative."""
    log_ratio = reference_log_probs - log_probs
    return log_ratio.exp() - log_ratio - 1


def grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    reference_log_probs: Tensor,
    advantages: Tensor,
    clip: float,
    kl_weight: float,
) -> tuple[Tensor, Tensor]:
    """Return the loss to minimise and the KL divergence within it, both means over all characters.

    The three log-probabilities are ``(batch, length)``, ``advantages`` is ``(batch,)``. All answers have one length, so
    the mean over characters equals the mean of the responses' means that DeepSeekMath writes.
    """
    kl = kl_to_reference(log_probs, reference_log_probs).mean()
    policy = clipped_policy_loss(log_probs, old_log_probs, advantages, clip).mean()
    return policy + kl_weight * kl, kl.detach()
