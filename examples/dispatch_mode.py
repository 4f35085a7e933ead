"""Add a dispatch mode: pairs of ranks work on the same rows, and the first of each pair returns the result.

That is the layout of a model that is split over two devices. The mode is one ``ModeRule``. It gets what the built-in
row modes have: padding, row ids, and a ``DataProtoFuture`` from a non-blocking call.

Run it: python examples/dispatch_mode.py
"""

from __future__ import annotations

from typing import Any

import torch

import core
from core import Arguments, CallOptions, DataProto, Dispatch, Dispatched, ModeRule, Worker, register, split_rows


def split_by_pairs(group: Any, arguments: Arguments, call: CallOptions) -> Dispatched:
    """Split the rows into one shard per pair of ranks.

    Args:
        group: The worker group; its world size must be even.
        arguments: The call's arguments.
        call: The method's name and what it does with rows that do not divide.
    """
    shards = split_rows(group.world_size // 2, arguments, call.uneven, call.method)
    ranks = range(group.world_size)
    return shards._replace(ranks=tuple(shards.ranks[rank // 2] for rank in ranks), sources=tuple(ranks[::2]))


PAIRS = Dispatch.register("PAIRS", ModeRule(split_by_pairs, rows=True, joins_rows=True))


class Model(Worker):
    """Half of a model."""

    @register(dispatch_mode=PAIRS, uneven="pad")
    def score(self, batch: DataProto) -> DataProto:
        """Return a score for each row, and the rank that computed it."""
        scores = batch.batch["x"] * 2
        return DataProto.from_dict({"score": scores, "rank": torch.full_like(scores, self.rank)})

    @register(dispatch_mode=PAIRS, uneven="pad", blocking=False)
    def score_later(self, batch: DataProto) -> DataProto:
        """Do the same without waiting: the call returns a ``DataProtoFuture``."""
        return self.score(batch)


def main() -> list[list[float]]:
    """Score five rows on four ranks; the future of one call is the argument of the next."""
    pool = core.RayResourcePool([4])
    model = core.RayWorkerGroup(pool, core.RayClassWithInitArgs(Model))
    batch = DataProto.from_dict({"x": torch.arange(5.0)})
    scored = model.score_later(batch).get()
    return [scored.batch["score"].tolist(), scored.batch["rank"].tolist()]


if __name__ == "__main__":
    core.init(num_cpus=4)
    print(main())
