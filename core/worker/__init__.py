"""Code that runs inside a worker's process."""

from core.worker.call_header import Header, plain_answer_name
from core.worker.facts import PROTECTED_VARIABLES, RankFacts
from core.worker.fused import FusedWorker
from core.worker.live import Reconfigures, ReplicatedState, SavesState
from core.worker.process_info import Traces
from core.worker.shell import WorkerIdentity, self_built_class, shell_class
from core.worker.state_policy import Keeping, hands_over, keeping, savers, unkept
from core.worker.worker import Worker

__all__ = [
    "PROTECTED_VARIABLES",
    "FusedWorker",
    "Header",
    "Keeping",
    "RankFacts",
    "Reconfigures",
    "ReplicatedState",
    "SavesState",
    "Traces",
    "Worker",
    "WorkerIdentity",
    "hands_over",
    "keeping",
    "plain_answer_name",
    "savers",
    "self_built_class",
    "shell_class",
    "unkept",
]
