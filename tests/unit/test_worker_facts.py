"""Which device a worker is told to use, by what its process sees."""

from __future__ import annotations

import pytest

from core.worker import RankFacts
from core.worker.facts import device_index


# Case 11 of the field (local_rank_device): LOCAL_RANK must be below the number of devices that the process sees.
@pytest.mark.parametrize(
    ("environ", "assigned", "index"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, ("3",), 0),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ("2", "3"), 0),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, ("6",), 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}, ("GPU-b",), 1),
        ({"HIP_VISIBLE_DEVICES": "1"}, ("1",), 0),
        ({"ASCEND_RT_VISIBLE_DEVICES": "5"}, ("5",), 0),
        ({}, ("5",), 5),
        ({}, (), 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, (), 3),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (), 1),
        ({"CUDA_VISIBLE_DEVICES": "MIG-x"}, ("0",), 0),
    ],
)
def test_local_rank_device_is_the_workers_own_among_those_that_it_sees(
    environ: dict[str, str], assigned: tuple[str, ...], index: int
) -> None:
    assert device_index({"RAY_LOCAL_RANK": "3", **environ}, assigned) == {"LOCAL_RANK": str(index)}


def test_the_rank_on_the_node_is_local_rank_where_nobody_says_more() -> None:
    place = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert RankFacts.read(place).local_rank_on_node == 1
    assert RankFacts.read({**place, "LOCAL_RANK": "0", "RAY_LOCAL_RANK": "1"}).local_rank_on_node == 1
