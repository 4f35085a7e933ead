"""The numbers of the training recipe, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from arithmetic.model import ModelConfig


@dataclass(frozen=True)
class Recipe:
    """How the model is trained.

    Attributes:
        seed: of the weights, the split of the prompts, every batch and every sample.
        model: sizes of the transformer.
        n_held_out: prompts that no training batch contains; they measure exact match before and after.
        start_accuracy: the supervised start ends once this share of fresh *training* prompts is answered right.
        max_lessons: the supervised start gives up after so many lessons.
        lesson_batches: updates per lesson of the supervised start.
        lesson_batch_size: prompts per update of the supervised start, over all ranks.
        supervised_rate: learning rate of the supervised start.
        n_prompts: prompts per RL step.
        group_size: sampled answers per prompt.
        n_epochs: passes over each step's answers.
        n_minibatches: updates per pass.
        rl_rate: learning rate of the RL steps.
        clip: how far a ratio may move from 1, see ``grpo.clipped_policy_loss``.
        kl_weight: weight of the KL divergence to the reference.
        max_gradient_norm: longer gradients of RL updates are shortened to this.
    """

    seed: int = 0
    model: ModelConfig = field(default_factory=ModelConfig)
    n_held_out: int = 500
    start_accuracy: float = 0.4
    max_lessons: int = 80
    lesson_batches: int = 5
    lesson_batch_size: int = 256
    supervised_rate: float = 3e-3
    n_prompts: int = 256
    group_size: int = 4
    n_epochs: int = 2
    n_minibatches: int = 8
    rl_rate: float = 5e-4
    clip: float = 0.2
    kl_weight: float = 0.01
    max_gradient_norm: float = 1.0
