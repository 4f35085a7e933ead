"""Bytes through a call: one way, there and back, one tensor to every rank; by bare Ray, Podium, and verl if there.

Bare Ray is what one would write by hand for speed: numpy arrays, one ``remote`` per rank, one ``get`` for all; the
round trip is joined by ``np.concatenate``, the broadcast is put into the store once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.measure import Effort, Row, Target, measure_in_turn
from benchmarks.memory import Growth, peak_growth
from core import DataProto

MIB = 1 << 20
_COLUMNS = 4
_ROWS = 1024

Contenders = dict[str, Callable[[], object]]


class Traffic:
    """Measures the rows of the table that move bytes, on the workers of one group.

    ``verl`` is verl's group and its batch class, None when it is not measured. A row that ``is_target`` has targets,
    and verl among its contenders.
    """

    def __init__(self, group: Any, verl: tuple[Any, Any] | None) -> None:
        """Remember the contenders."""
        self._group = group
        self._actors = group.workers
        self._verl = verl

    @property
    def _ranks(self) -> str:
        return f"{len(self._actors)} ranks"

    def one_way(self, n_mib: int, effort: Effort, is_target: bool) -> Row:
        """Send a batch, a share to each rank."""
        arrays, batch = _shares(n_mib, len(self._actors)), _batch(n_mib)
        actors = self._actors
        contenders: Contenders = {
            "bare Ray": lambda: ray.get([a.take_array.remote(x) for a, x in zip(actors, arrays, strict=True)]),
            "Podium": lambda: self._group.take(batch),
        }
        if self._verl is not None and is_target:
            group, theirs = self._verl[0], _verl_batch(self._verl[1], batch)
            contenders["verl"] = lambda: group.take(theirs)
        targets = (Target("Podium", "bare Ray", 1.15), Target("Podium", "verl", 1 / 8))
        what = f"{n_mib} MiB to {self._ranks}, one way"
        return measure_in_turn(what, "bare Ray", contenders, effort, targets if is_target else ())

    def round_trip(self, n_mib: int, effort: Effort, is_target: bool) -> Row:
        """Send a batch and join what the ranks give back; the driver's growth in memory is measured apart."""
        arrays, batch = _shares(n_mib, len(self._actors)), _batch(n_mib)
        actors = self._actors
        contenders: Contenders = {
            "bare Ray": lambda: np.concatenate(
                ray.get([a.echo_array.remote(x) for a, x in zip(actors, arrays, strict=True)])
            ),
            "Podium": lambda: self._group.echo(batch),
        }
        if self._verl is not None and is_target:
            group, theirs = self._verl[0], _verl_batch(self._verl[1], batch)
            contenders["verl"] = lambda: group.echo(theirs)
        targets = (Target("Podium", "bare Ray", 1.0), Target("Podium", "verl", 1 / 4))
        what = f"{n_mib} MiB to {self._ranks} and back, joined"
        row = measure_in_turn(what, "bare Ray", contenders, effort, targets if is_target else ())
        growth = {name: peak_growth(call) for name, call in contenders.items() if name != "verl"}
        return Row(row.what, row.base, row.contenders, row.targets, _in_batches(growth, n_mib * MIB))

    def broadcast(self, n_mib: int, effort: Effort, is_target: bool) -> Row:
        """Send one tensor to every rank."""
        array = np.random.default_rng(0).standard_normal(n_mib * MIB // 8)
        tensor = torch.from_numpy(array)
        actors = self._actors

        def put_once() -> object:
            ref = ray.put(array)
            return ray.get([actor.take_array.remote(ref) for actor in actors])

        contenders: Contenders = {"bare Ray": put_once, "Podium": lambda: self._group.hold(tensor)}
        if self._verl is not None and is_target:
            group = self._verl[0]
            contenders["verl"] = lambda: group.hold(tensor)
        targets = (Target("Podium", "bare Ray", 1.15), Target("Podium", "verl", 1 / 8))
        what = f"{n_mib} MiB tensor to each of {self._ranks}"
        return measure_in_turn(what, "bare Ray", contenders, effort, targets if is_target else ())


def _shares(n_mib: int, n_ranks: int) -> list[np.ndarray[Any, Any]]:
    """Return a contiguous array per rank, of ``n_mib`` in all."""
    whole = np.random.default_rng(0).standard_normal(n_mib * MIB // 8).reshape(_ROWS, -1)
    return list(np.split(whole, n_ranks))


def _batch(n_mib: int) -> DataProto:
    """Return as many bytes in four columns, one of them a numpy array."""
    rng = np.random.default_rng(0)
    width = n_mib * MIB // 8 // _ROWS // _COLUMNS
    columns = [rng.standard_normal((_ROWS, width)) for _ in range(_COLUMNS)]
    tensors = {f"column_{number}": torch.from_numpy(column) for number, column in enumerate(columns[1:])}
    return DataProto.from_dict(tensors=tensors, non_tensors={"array": columns[0]})


def _verl_batch(batch_class: Any, batch: DataProto) -> Any:
    return batch_class.from_dict(tensors=dict(batch.batch.items()), non_tensors=dict(batch.non_tensor_batch))


def _in_batches(growth: dict[str, Growth], n_bytes: int) -> dict[str, float]:
    """Return each contender's growth as multiples of the batch."""
    facts = {}
    for name, grown in growth.items():
        facts[f"{name}: peak growth of the driver's own memory, in batches"] = grown.own_bytes / n_bytes
        facts[f"{name}: and of store pages mapped by it, in batches"] = grown.shared_bytes / n_bytes
    return facts
