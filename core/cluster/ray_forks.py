"""What a forked child does with the objects that its parent's Ray left in it.

Ray's C++ objects count on threads that a child does not have, and share sockets with the parent. A destructor that runs
in the child crashes it, waits forever, or speaks to the cluster as the parent. ``multiprocessing`` leaves by
``os._exit`` and destroys nothing; a child of ``os.fork`` that returns from ``main`` or leaves by ``sys.exit`` destroys
everything. So nothing of Ray's is destroyed in a child, by Python or by the C library.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn

from core.cluster.forks import forked_from
from core.cluster.ray_names import is_forked

# Where CPython keeps these in a type, on every 64-bit build without the trace of references.
_BASIC_SIZE = 4 * ctypes.sizeof(ctypes.c_void_p)
_DEALLOCATE = 6 * ctypes.sizeof(ctypes.c_void_p)
_HEAP_TYPE = 1 << 9


def abandon_in_child(context: Any) -> Callable[[], None] | None:
    """Return what a child calls first: it makes Ray's objects inert and has the process leave without them.

    Args:
        context: Ray's runtime context of this process; a client of a Ray elsewhere has no worker.
    """
    if (worker := getattr(context, "worker", None)) is None:
        return None
    # Looked up here: in a child another thread may have held the loader's lock.
    libc = ctypes.CDLL(None)
    keep = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value
    kinds = _extension_types()

    def abandon() -> None:
        for kind in kinds:
            ctypes.c_void_p.from_address(id(kind) + _DEALLOCATE).value = keep
        if hasattr(worker, "core_worker"):
            worker.core_worker = _Unusable()
        # An uncaught error would be sent to the cluster, and `ray.shutdown` would end the parent's subscriptions.
        worker.set_mode(None)
        for connection in ("gcs_client", "gcs_error_subscriber", "gcs_log_subscriber"):
            with suppress(AttributeError):
                delattr(worker, connection)
        if worker.node is not None:  # The parent's processes, which an exit hook of Ray's would kill.
            worker.node.all_processes = {}
        if hasattr(libc, "on_exit"):
            # The last one registered runs first; `_exit` is handed the exit code.
            libc.on_exit(libc["_exit"], None)
            libc.on_exit(libc.fcloseall, None)

    return abandon


class _Unusable:
    """Stands in a child for the parent's connection; what is dropped there was not the child's."""

    def remove_object_ref_reference(self, ref: object) -> None:
        """Ignore that the child drops a reference."""

    def remove_actor_handle_reference(self, actor_id: object) -> None:
        """Ignore that the child drops a handle."""

    def get_job_config(self) -> SimpleNamespace:
        """Return a configuration without settings: ``ray.shutdown`` reads it, as at the end of ``with ray.init()``."""
        return SimpleNamespace(serialized_py_logging_config=b"")

    def __getattr__(self, name: str) -> NoReturn:
        """Raise: whatever is asked for, only the parent can have it."""
        raise is_forked(forked_from())


def _extension_types() -> list[type]:
    """Return Ray's extension types, where CPython lays types out as expected."""
    module = sys.modules.get("ray._raylet")
    found = [kind for kind in vars(module).values() if isinstance(kind, type)] if module else []
    own = [kind for kind in found if kind.__module__ in {"ray", "ray._raylet"} and not kind.__flags__ & _HEAP_TYPE]
    return [kind for kind in own if _basic_size(kind) == kind.__basicsize__]


def _basic_size(kind: type) -> int:
    return ctypes.c_ssize_t.from_address(id(kind) + _BASIC_SIZE).value
