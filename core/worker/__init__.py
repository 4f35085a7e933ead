"""Code that runs inside a worker's process."""

from core.worker.facts import PROTECTED_VARIABLES, RankFacts
from core.worker.fused import FusedWorker
from core.worker.shell import Header, WorkerIdentity, plain_answer_name, self_built_class, shell_class
from core.worker.worker import Worker

__all__ = [
    "PROTECTED_VARIABLES",
    "FusedWorker",
    "Header",
    "RankFacts",
    "Worker",
    "WorkerIdentity",
    "plain_answer_name",
    "self_built_class",
    "shell_class",
]
