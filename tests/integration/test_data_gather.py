"""all_gather_data_proto over real process groups (gloo, processes of their own)."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from core.data import DataProto, all_gather_data_proto
from core.errors import MergeConflictError

pytestmark = pytest.mark.integration

WORLD = 2


def make(rank: int) -> dict[str, DataProto]:
    """Return what a rank brings along; each case is told apart by its name."""
    n = rank + 1
    jagged = torch.nested.nested_tensor([torch.ones(1 + i) * rank for i in range(n)], layout=torch.jagged)
    return {
        "unequal": DataProto.from_dict(
            {"x": torch.full((n, 2), float(rank)), "b": torch.full((n,), rank, dtype=torch.bfloat16), "j": jagged},
            {"who": [f"{rank}.{i}" for i in range(n)], "ints": np.full(n, rank, dtype=np.int32)},
            {"name": "x", "timing": {"gen": 0.1 * rank}, "metrics": {"loss": rank}},
        ),
        "none on rank 0": DataProto.from_dict({"x": torch.full((rank, 2), float(rank))}, meta_info={"m": 1}),
        "arrays only": DataProto.from_dict(non_tensors={"a": [rank] * n}),
        "no rows": DataProto.from_dict({"x": torch.ones(0, 3)}),
        "nothing": DataProto(),
    }


def run_rank(rank: int, folder: str) -> None:
    """Gather every case and leave the results in a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = FileStore(f"{folder}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    gathered: dict[str, Any] = make(rank)
    for batch in gathered.values():
        all_gather_data_proto(batch, dist.group.WORLD)
    over_mesh = make(rank)["unequal"]
    all_gather_data_proto(over_mesh, init_device_mesh("cpu", (WORLD,)))
    gathered["mesh"] = over_mesh
    try:
        all_gather_data_proto(
            DataProto.from_dict({"x": torch.ones(1)}, meta_info={"mode": str(rank)}), dist.group.WORLD
        )
    except MergeConflictError as error:
        gathered["conflict"] = error
    Path(f"{folder}/{rank}").write_bytes(pickle.dumps(gathered))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gather")
    spawn(run_rank, args=(str(folder),), nprocs=WORLD)  # type: ignore[no-untyped-call]
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(WORLD)]


def test_fault_72_every_rank_has_the_rows_of_all_in_rank_order(by_rank: list[dict[str, Any]]) -> None:
    expected = DataProto.concat([make(rank)["unequal"] for rank in range(WORLD)])
    for results in by_rank:
        for case in ("unequal", "mesh"):
            assert results[case] == expected
            assert results[case].batch["x"][:, 0].tolist() == [0, 1, 1]
            assert results[case].batch.device == torch.device("cpu")
            assert results[case].non_tensor_batch["who"].tolist() == ["0.0", "1.0", "1.1"]
            assert results[case].meta_info["name"] == "x"
            assert results[case].meta_info["timing"]["gen"] == [0.0, 0.1]
            assert results[case].meta_info["metrics"] == {"loss": [0, 1]}


def test_ranks_without_rows_or_tensors_are_no_trouble(by_rank: list[dict[str, Any]]) -> None:
    for results in by_rank:
        assert results["none on rank 0"].batch["x"].tolist() == [[1, 1]]
        assert results["none on rank 0"].meta_info == {"m": 1}
        assert results["arrays only"].non_tensor_batch["a"].tolist() == [0, 1, 1]
        assert results["no rows"].batch["x"].shape == (0, 3)
        assert len(results["nothing"]) == 0


def test_settings_that_differ_are_an_error_on_every_rank(by_rank: list[dict[str, Any]]) -> None:
    assert all("meta_info key 'mode'" in str(results["conflict"]) for results in by_rank)
