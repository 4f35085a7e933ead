"""What a worker reads from its environment: its rank and its visible devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.errors import UsageError

PROTECTED_VARIABLES = (
    "WORLD_SIZE",
    "RANK",
    "LOCAL_WORLD_SIZE",
    "LOCAL_RANK",
    "RAY_LOCAL_RANK",
    "RAY_LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WG_PREFIX",
    "WG_BACKEND",
)
"""What every worker is given, and what ``worker_env`` therefore may not name."""

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """A worker's place among the ranks of its group.

    ``local_rank`` is LOCAL_RANK, the index of its device among those that its process sees. ``local_rank_on_node`` is
    its rank among the group's workers on its node, whose number is ``local_world_size``.
    """

    rank: int
    world_size: int
    local_rank: int
    local_rank_on_node: int
    local_world_size: int
    master_addr: str
    master_port: str
    group: str

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> RankFacts:
        """Read the facts once.

        Raises:
            UsageError: RANK or WORLD_SIZE is missing or no number: the code runs in no worker.
        """
        try:
            rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        except KeyError as missing:
            raise UsageError(
                f"a Worker reads its rank from the environment and {missing.args[0]} is not set; build it in a "
                f"RayWorkerGroup, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            ) from None
        except ValueError as error:
            raise UsageError(f"RANK and WORLD_SIZE must be whole numbers: {error}") from None
        local_rank = int(environ.get("LOCAL_RANK", rank))
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_rank_on_node=int(environ.get("RAY_LOCAL_RANK", local_rank)),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", world_size)),
            master_addr=environ.get("MASTER_ADDR", ""),
            master_port=environ.get("MASTER_PORT", ""),
            group=environ.get("WG_PREFIX", ""),
        )


def device_index(environ: Mapping[str, str], assigned: Sequence[str] = ()) -> dict[str, str]:
    """Return LOCAL_RANK: the index of this worker's device among those that its process sees.

    It is 0 where the process sees its own device alone, as Ray has it. ``assigned`` are the ids of the devices that the
    cluster gave this process: with RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES a process sees more than those. Without
    a device of its own it is the rank on the node, wrapped to the devices that the process sees, if any.
    """
    on_node = int(environ.get("RAY_LOCAL_RANK", environ.get("LOCAL_RANK", environ.get("RANK", "0"))))
    seen = visible_devices(environ)
    visible = [] if seen == "not set" else [one.strip() for one in seen.split(",") if one.strip()]
    own = assigned[0] if assigned else ""
    if own in visible:
        index = visible.index(own)
    elif len(visible) == 1:
        index = 0
    elif visible:
        index = on_node % len(visible)
    else:
        # The process sees every device of its node, by the ids that the cluster has for them, or it sees none.
        index = int(own) if own.isdigit() else on_node
    return {"LOCAL_RANK": str(index)}


def visible_devices(environ: Mapping[str, str]) -> str:
    """Return the visible accelerators as a string such as "0,1", or "not set"."""
    for name in _VISIBLE_DEVICES:
        if environ.get(name):
            return environ[name]
    return "not set"


def normalized_visible_devices(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what must be added to the environment so that CUDA_VISIBLE_DEVICES names the devices on AMD machines too.

    Raises:
        UsageError: HIP and CUDA name different devices, or ROCR is set together with one of them.
    """
    hip, cuda, rocr = (environ.get(f"{kind}_VISIBLE_DEVICES") for kind in ("HIP", "CUDA", "ROCR"))
    if rocr and (hip or cuda):
        raise UsageError(
            f"ROCR_VISIBLE_DEVICES={rocr} is set together with HIP_VISIBLE_DEVICES={hip} or "
            f"CUDA_VISIBLE_DEVICES={cuda}; unset it, Ray sets the others"
        )
    if hip and cuda and hip != cuda:
        raise UsageError(f"HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda} differ; unset one of them")
    return {"CUDA_VISIBLE_DEVICES": hip} if hip and not cuda else {}
