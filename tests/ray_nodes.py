"""Several nodes of one Ray on this one machine, by Ray's own ``Cluster``."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayNodes

from core import runtime as runtimes
from core.runtime import Runtime, connect_to_ray

_STORE_BYTES = 80 * 1024 * 1024


@dataclass(frozen=True)
class Nodes:
    """A Ray of several nodes: the runtime on it, and how another node joins."""

    runtime: Runtime
    add: Callable[..., object]


@contextmanager
def nodes_of_ray(head: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[Nodes]:
    """Start a Ray with these nodes, each as ``ray.init`` would be told of it."""
    folder = tempfile.mkdtemp(prefix="pd-", dir="/tmp")
    # Ray writes its address for all the machine to find, into a folder that must be there: into ours.
    Path(folder, "ray").mkdir()
    before_tmp = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = folder
    common: dict[str, Any] = {"object_store_memory": _STORE_BYTES}
    try:
        nodes = RayNodes(initialize_head=True, head_node_args={**common, "include_dashboard": False, **head})
        add = partial(nodes.add_node, **common)
        for other in others:
            add(**other)
        # Ray's own start of a node leaves sockets to the collector: here, not in a later test.
        gc.collect()
        ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.WARNING)
        made = Runtime(connect_to_ray)
        before = runtimes.install(made)
        try:
            yield Nodes(made, add)
        finally:
            made.close()
            runtimes.install(before)
            ray.shutdown()
            nodes.shutdown()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["RAY_TMPDIR"]
        if before_tmp is not None:
            os.environ["RAY_TMPDIR"] = before_tmp
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()
