"""Bytes through a call: one way, there and back, one tensor to every rank; by bare Ray, Podium, and verl if there.

Bare Ray is what one would write by hand for speed: a list of numpy arrays, one ``remote`` per rank, one ``get`` for
all; the round trip is joined by ``np.concatenate``, the broadcast is put into the store once. Both sides move the same
arrays: a batch of four columns is four arrays per rank, which takes Ray longer than one array of the same size.
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
from core.data.buffer_pool import release_pool

MIB = 1 << 20
_ROWS = 1024

Array = np.ndarray[Any, Any]
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

    def one_way(self, n_mib: int, n_columns: int, effort: Effort, is_target: bool) -> Row:
        """Send a batch, a share to each rank."""
        batch = _batch(n_mib, n_columns)
        shares = _shares(batch, len(self._actors))
        actors = self._actors
        contenders: Contenders = {
            "bare Ray": lambda: ray.get([a.take_arrays.remote(x) for a, x in zip(actors, shares, strict=True)]),
            "Podium": lambda: self._group.take(batch),
        }
        if self._verl is not None and is_target:
            group, theirs = self._verl[0], _verl_batch(self._verl[1], batch)
            contenders["verl"] = lambda: group.take(theirs)
        targets = (Target("Podium", "bare Ray", 1.15), Target("Podium", "verl", 1 / 8))
        what = f"{n_mib} MiB in {_columns(n_columns)} to {self._ranks}, one way"
        return measure_in_turn(what, "bare Ray", contenders, effort, targets if is_target else ())

    def round_trip(self, n_mib: int, n_columns: int, effort: Effort, is_target: bool) -> Row:
        """Send a batch and join what the ranks give back; the driver's growth in memory is measured apart."""
        batch = _batch(n_mib, n_columns)
        shares = _shares(batch, len(self._actors))
        actors = self._actors

        def by_hand() -> list[Array]:
            parts = ray.get([a.echo_arrays.remote(x) for a, x in zip(actors, shares, strict=True)])
            return [np.concatenate(column) for column in zip(*parts, strict=True)]

        contenders: Contenders = {"bare Ray": by_hand, "Podium": lambda: self._group.echo(batch)}
        if self._verl is not None and is_target:
            group, theirs = self._verl[0], _verl_batch(self._verl[1], batch)
            contenders["verl"] = lambda: group.echo(theirs)
        targets = (Target("Podium", "bare Ray", 1.0), Target("Podium", "verl", 1 / 4))
        what = f"{n_mib} MiB in {_columns(n_columns)} to {self._ranks} and back, joined"
        row = measure_in_turn(what, "bare Ray", contenders, effort, targets if is_target else ())
        growth = {}
        for name, call in contenders.items():
            if name != "verl":
                # Podium would else join into the memory of the call before, and grow by nothing.
                release_pool()
                growth[name] = peak_growth(call)
        return Row(row.what, row.base, row.contenders, row.targets, _in_batches(growth, n_mib * MIB))

    def broadcast(self, n_mib: int, effort: Effort, is_target: bool) -> Row:
        """Send one tensor to every rank."""
        array = np.random.default_rng(0).standard_normal(n_mib * MIB // 8)
        tensor = torch.from_numpy(array)
        actors = self._actors

        def put_once() -> object:
            ref = ray.put(array)
            return ray.get([actor.take_arrays.remote(ref) for actor in actors])

        contenders: Contenders = {"bare Ray": put_once, "Podium": lambda: self._group.hold(tensor)}
        if self._verl is not None and is_target:
            group = self._verl[0]
            contenders["verl"] = lambda: group.hold(tensor)
        targets = (Target("Podium", "bare Ray", 1.15), Target("Podium", "verl", 1 / 8))
        what = f"{n_mib} MiB tensor to each of {self._ranks}"
        return measure_in_turn(what, "bare Ray", contenders, effort, targets if is_target else ())


def _columns(n_columns: int) -> str:
    return "one column" if n_columns == 1 else f"{n_columns} columns"


def _batch(n_mib: int, n_columns: int) -> DataProto:
    """Return ``n_mib`` in columns, one of them, if there are several, a numpy array."""
    rng = np.random.default_rng(0)
    width = n_mib * MIB // 8 // _ROWS // n_columns
    columns = [rng.standard_normal((_ROWS, width)) for _ in range(n_columns)]
    tensors = {f"column_{number}": torch.from_numpy(column) for number, column in enumerate(columns)}
    arrays = {} if n_columns == 1 else {"array": tensors.pop("column_0").numpy()}
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def _shares(batch: DataProto, n_ranks: int) -> list[list[Array]]:
    """Return the same memory as numpy arrays: for each rank its contiguous rows of every column."""
    tensors = [batch.batch[name].numpy() for name in batch.batch.keys()]  # noqa: SIM118 - not a dict
    columns: list[Array] = [*batch.non_tensor_batch.values(), *tensors]
    return [list(parts) for parts in zip(*(np.split(column, n_ranks) for column in columns), strict=True)]


def _verl_batch(batch_class: Any, batch: DataProto) -> Any:
    return batch_class.from_dict(tensors=dict(batch.batch.items()), non_tensors=dict(batch.non_tensor_batch))


def _in_batches(growth: dict[str, Growth], n_bytes: int) -> dict[str, float]:
    """Return each contender's growth as multiples of the batch."""
    facts = {}
    for name, grown in growth.items():
        facts[f"{name}: peak growth of the driver's own memory, in batches"] = grown.own_bytes / n_bytes
        facts[f"{name}: and of store pages mapped by it, in batches"] = grown.shared_bytes / n_bytes
    return facts
