"""RL post-training of a tiny language model on several processes, written like one process.

A character-level transformer learns sums of two-digit numbers: a short supervised start, then GRPO. An Actor group
trains with torch.distributed, a Reference sits on the actor's slots, a Rollout group samples answers, and the reward
checks each sum. ``podium demo`` runs it with the dashboard on; ``python examples/arithmetic_rl.py --seed 1`` alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from arithmetic import grpo, task
from arithmetic.recipe import Recipe
from arithmetic.resources import MAX_COLOCATE_COUNT, logical_resources
from arithmetic.workers import Actor, Reference, Rollout
from torch import Tensor

import core
from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

FULL_STEPS, SHORT_STEPS = 80, 15


def exact_match(rollout: RayWorkerGroup, prompts: Tensor) -> float:
    """Return the share of ``prompts``, ``(n, PROMPT_LENGTH)``, whose likeliest answer is right in every character."""
    batch = DataProto.from_dict(tensors={"prompts": prompts}, meta_info={"greedy": True})
    return task.verify(prompts, rollout.generate_sequences(batch).batch["responses"]).mean().item()


def start_supervised(
    actor: RayWorkerGroup, rollout: RayWorkerGroup, recipe: Recipe, train: Tensor, generator: torch.Generator
) -> None:
    """Show right answers until a fresh batch of training prompts is answered well enough for RL to find its rewards."""
    for lesson in range(1, recipe.max_lessons + 1):
        prompts = task.draw_prompts(train, recipe.lesson_batches * recipe.lesson_batch_size, generator)
        losses = actor.imitate(DataProto.from_dict(tensors={"prompts": prompts, "responses": task.solve(prompts)}))
        rollout.load_weights(actor.weights())
        accuracy = exact_match(rollout, task.draw_prompts(train, recipe.n_prompts, generator))
        print(f"lesson {lesson}: loss {sum(losses) / len(losses):.3f}, exact match {accuracy:.2f}", flush=True)
        if accuracy >= recipe.start_accuracy:
            return


def reinforce(
    actor: RayWorkerGroup, reference: RayWorkerGroup, rollout: RayWorkerGroup, recipe: Recipe, prompts: Tensor
) -> tuple[float, float]:
    """Make one GRPO step from ``prompts``, ``(n, PROMPT_LENGTH)``; return the mean reward and the KL divergence."""
    batch = DataProto.from_dict(tensors={"prompts": prompts}, meta_info={"greedy": False}).repeat(recipe.group_size)
    batch.union(rollout.generate_sequences(batch))
    reference_log_probs = reference.compute_log_prob(batch)  # a future: the actor works meanwhile
    batch.union(actor.compute_log_prob(batch)).union(reference_log_probs.get())
    rewards = task.verify(batch.batch["prompts"], batch.batch["responses"])
    advantages = grpo.group_advantages(rewards, recipe.group_size)
    divergences = actor.update(batch.union(DataProto.from_dict(tensors={"advantages": advantages})))
    rollout.load_weights(actor.weights())
    return rewards.mean().item(), sum(divergences) / len(divergences)


def train(recipe: Recipe, n_steps: int, trainers: RayResourcePool, generators: RayResourcePool) -> tuple[float, float]:
    """Train on two pools; return the exact match on held-out prompts before and after the RL steps."""
    problems = task.split_problems(recipe.n_held_out, recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    actor = RayWorkerGroup(trainers, RayClassWithInitArgs(Actor, recipe), name_prefix="actor")
    reference = RayWorkerGroup(trainers, RayClassWithInitArgs(Reference, recipe), name_prefix="reference")
    rollout = RayWorkerGroup(generators, RayClassWithInitArgs(Rollout, recipe), name_prefix="rollout")

    start_supervised(actor, rollout, recipe, problems.train, generator)
    reference.load_weights(actor.weights())
    before = exact_match(rollout, problems.held_out)
    for step in core.steps(n_steps):
        prompts = task.draw_prompts(problems.train, recipe.n_prompts, generator)
        reward, divergence = reinforce(actor, reference, rollout, recipe, prompts)
        accuracy = exact_match(rollout, task.draw_prompts(problems.train, recipe.n_prompts, generator))
        step.log(reward=reward, accuracy=accuracy, kl=divergence)
        print(
            f"step {step.index}/{n_steps}: reward {reward:.3f}, accuracy {accuracy:.2f}, KL {divergence:.3f}",
            flush=True,
        )
    return before, exact_match(rollout, problems.held_out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train, and print the exact match on held-out prompts before and after RL."""
    parser = argparse.ArgumentParser(description="RL post-training of a tiny language model that learns sums.")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts and samples")
    parser.add_argument("--steps", type=int, help=f"RL steps, {FULL_STEPS} when not given")
    parser.add_argument("--short", action="store_true", help=f"make {SHORT_STEPS} RL steps")
    parser.add_argument("--nproc", type=int, default=2, help="ranks of each group")
    given = parser.parse_args(arguments)
    n_steps = given.steps if given.steps is not None else SHORT_STEPS if given.short else FULL_STEPS

    # Logical resources: a machine without a GPU takes the pools all the same.
    num_cpus, num_gpus = logical_resources(given.nproc)
    core.init(num_cpus=num_cpus, num_gpus=num_gpus)
    with (
        RayResourcePool([given.nproc], name_prefix="trainers", max_colocate_count=MAX_COLOCATE_COUNT) as trainers,
        RayResourcePool([given.nproc], name_prefix="generators", max_colocate_count=MAX_COLOCATE_COUNT) as generators,
    ):
        before, after = train(Recipe(seed=given.seed), n_steps, trainers, generators)
    print(f"held-out exact match: {before:.2f} before RL, {after:.2f} after ({after - before:+.2f})", flush=True)


if __name__ == "__main__":
    main()
