"""The roles of the training, as code that runs on every rank of a worker group."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, distributed, nn

from arithmetic import grpo
from arithmetic.model import TinyLM
from arithmetic.recipe import Recipe
from core import DataProto, Dispatch, Execute, ReplicatedState, Worker, register

_WARM_UP_UPDATES = 20
_ADAM_BETAS = (0.9, 0.99)


class Policy(ReplicatedState, Worker):
    """A rank with a copy of the model, whose weights the actor replaces; a live change takes it to other processes."""

    def __init__(self, recipe: Recipe) -> None:
        """Build the model; equal seeds give all ranks of all roles equal weights."""
        super().__init__()
        torch.set_num_threads(1)  # several ranks share the cores
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.model = TinyLM(recipe.model)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take over the actor's weights."""
        self.model.load_state_dict(weights)

    @torch.no_grad()
    def _log_probs(self, batch: DataProto) -> Tensor:
        """Return log p of the batch's responses, ``(rows, ANSWER_LENGTH)``."""
        return self.model.log_probs(batch.batch["prompts"], batch.batch["responses"])


class Actor(Policy):
    """The policy in training: each rank learns from its own rows, gradients are averaged over the ranks.

    Shares of any size will do, as every rank makes the same number of updates: the group may be resized meanwhile.
    """

    replicated_values = ("n_updates",)

    def __init__(self, recipe: Recipe) -> None:
        """Join the group's torch.distributed; Podium has set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE."""
        super().__init__(recipe)
        distributed.init_process_group("gloo")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=_ADAM_BETAS, weight_decay=0.0)
        self.n_updates = 0

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, uneven="split")
    def imitate(self, lesson: DataProto) -> float:
        """Learn the right ``responses`` to ``prompts``, an update for each part of the lesson; return the mean loss."""
        losses = []
        for part in _parts(lesson, torch.arange(len(lesson)), self.recipe.lesson_batches):
            loss = -self.model.log_probs(part.batch["prompts"], part.batch["responses"]).mean()
            self._descend(loss, self.recipe.supervised_rate)
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="split")
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """Return ``old_log_probs``, ``(rows, ANSWER_LENGTH)``: what the policy thought before this step's updates."""
        return DataProto.from_dict(tensors={"old_log_probs": self._log_probs(batch)})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, uneven="split")
    def update(self, batch: DataProto) -> float:
        """Make the step's GRPO updates; return the mean KL divergence to the reference."""
        divergences = []
        for mini in self._minibatches(batch):
            loss, divergence = grpo.grpo_loss(
                log_probs=self.model.log_probs(mini.batch["prompts"], mini.batch["responses"]),
                old_log_probs=mini.batch["old_log_probs"],
                reference_log_probs=mini.batch["reference_log_probs"],
                advantages=mini.batch["advantages"],
                clip=self.recipe.clip,
                kl_weight=self.recipe.kl_weight,
            )
            self._descend(loss, self.recipe.rl_rate)
            divergences.append(divergence.item())
        return sum(divergences) / len(divergences)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def weights(self) -> dict[str, Tensor]:
        """Return the weights; rank 0 speaks for all, they are equal."""
        return self.model.state_dict()

    def _minibatches(self, batch: DataProto) -> Iterator[DataProto]:
        generator = torch.Generator().manual_seed(self.recipe.seed)
        for _ in range(self.recipe.n_epochs):
            order = torch.randperm(len(batch), generator=generator)
            yield from _parts(batch, order, self.recipe.n_minibatches)

    def _descend(self, loss: Tensor, rate: float) -> None:
        """Average the gradients of all ranks and take one step; weights stay equal on all ranks."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        total = nn.utils.parameters_to_vector(gradients)
        distributed.all_reduce(total)
        nn.utils.vector_to_parameters(total / self.world_size, gradients)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_gradient_norm)
        self.n_updates += 1
        self.optimizer.param_groups[0]["lr"] = rate * min(1.0, self.n_updates / _WARM_UP_UPDATES)
        self.optimizer.step()


class Reference(Policy):
    """The policy as the supervised start left it; it keeps the actor from drifting."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, uneven="split")
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """Return ``reference_log_probs``, ``(rows, ANSWER_LENGTH)``."""
        return DataProto.from_dict(tensors={"reference_log_probs": self._log_probs(batch)})


class Rollout(Policy):
    """Answers prompts with the weights it was given last."""

    def __init__(self, recipe: Recipe) -> None:
        """Give every rank a random generator of its own: ranks that sample alike would waste samples."""
        super().__init__(recipe)
        torch.manual_seed(1_000 * (recipe.seed + 1) + self.rank)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="split")
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Return ``responses``, ``(rows, ANSWER_LENGTH)``, sampled or, if the meta says ``greedy``, the likeliest."""
        answers = self.model.generate(prompts.batch["prompts"], greedy=prompts.meta_info["greedy"])
        return DataProto.from_dict(tensors={"responses": answers})


def _parts(batch: DataProto, order: Tensor, n_parts: int) -> Iterator[DataProto]:
    """Yield ``n_parts`` parts of the rows in ``order``, whose sizes differ by one at most."""
    return (batch[rows] for rows in order.tensor_split(n_parts))
