"""A worker's place in an n-d mesh of tensor, data, pipeline and context parallelism, as drivers for verl note it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DistRankInfo:
    """The ranks of one worker along each axis."""

    tp_rank: int
    dp_rank: int
    pp_rank: int
    cp_rank: int


@dataclass
class DistGlobalInfo:
    """The sizes of a mesh along each axis."""

    tp_size: int
    dp_size: int
    pp_size: int
    cp_size: int
