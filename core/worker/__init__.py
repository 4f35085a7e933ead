"""Code that runs inside a worker's process."""

from core.worker.call_header import Header
from core.worker.facts import PROTECTED_VARIABLES, RankFacts
from core.worker.fused import FusedWorker
from core.worker.live import Reconfigures, ReplicatedState, SavesState
from core.worker.mesh_ranks import DistGlobalInfo, DistRankInfo
from core.worker.ports import get_master_addr_port
from core.worker.process_info import ProcessInfo
from core.worker.shell import WorkerIdentity, self_built_class, shell_class
from core.worker.state_policy import StatePolicy, can_save_state, savers, state_policy, unsaved
from core.worker.worker import Worker

__all__ = [
    "PROTECTED_VARIABLES",
    "DistGlobalInfo",
    "DistRankInfo",
    "FusedWorker",
    "Header",
    "ProcessInfo",
    "RankFacts",
    "Reconfigures",
    "ReplicatedState",
    "SavesState",
    "StatePolicy",
    "Worker",
    "WorkerIdentity",
    "can_save_state",
    "get_master_addr_port",
    "savers",
    "self_built_class",
    "shell_class",
    "state_policy",
    "unsaved",
]
