"""What each dispatch mode does with arguments and results, and the registry that users may extend.

The functions with names of the field (``dispatch_one_to_all`` ...) take a worker group first, that is anything with a
``world_size``, and can be used in modes of one's own. They and the group's calls share the rules of ``split``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from core.data.rows import join
from core.data.shares import Uneven
from core.dispatch.mesh import ask_mesh, join_or_future, mesh_name_of, split_over_mesh
from core.dispatch.modes import Dispatch, Execute, OpenEnum
from core.dispatch.register import Registration
from core.dispatch.split import (
    Arguments,
    Broadcast,
    Dispatched,
    send_to_all,
    split_by_convention,
    split_lists,
    split_rows,
)
from core.errors import RegistrationError, ShareError


class HasWorldSize(Protocol):
    """A worker group, as far as dispatch rules look at it."""

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        ...


DispatchFn = Callable[..., tuple[Any, Any]]
CollectFn = Callable[..., Any]
ModeFunctions = dict[str, Callable[..., Any]]


def dispatch_one_to_all(worker_group: HasWorldSize, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Give every rank the same arguments."""
    return send_to_all(worker_group.world_size, Arguments(args, kwargs)).columns()


def dispatch_all_to_all(worker_group: HasWorldSize, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Pass the arguments through: ``execute_all``'s convention for lists applies."""
    del worker_group
    return args, kwargs


def collect_all_to_all(worker_group: HasWorldSize, output: Any) -> Any:
    """Return the results as they are, one per rank."""
    del worker_group
    return output


def dispatch_dp_compute(worker_group: HasWorldSize, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Split lists with one item per rank.

    Raises:
        ShareError: An argument is no list of ``world_size`` items.
    """
    return split_lists(worker_group.world_size, Arguments(args, kwargs)).columns()


def collect_dp_compute(worker_group: HasWorldSize, output: Sequence[Any]) -> Sequence[Any]:
    """Return the results as a list by rank.

    Raises:
        ShareError: There is not one result per rank.
    """
    if len(output) != worker_group.world_size:
        raise ShareError(f"{len(output)} results for {worker_group.world_size} ranks")
    return output


def dispatch_dp_compute_data_proto(worker_group: HasWorldSize, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Cut every argument into one share of rows per rank; padding rows, if any, carry the row id -1.

    Raises:
        ShareError: An argument has no rows.
        UnevenSplitError: The rows do not divide.
    """
    return split_rows(worker_group.world_size, Arguments(args, kwargs), None, "a dispatch function").columns()


def dispatch_dp_compute_data_proto_with_func(worker_group: HasWorldSize, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Send the function in first place to all ranks and cut the rest into shares.

    Raises:
        ShareError: The first argument cannot be called.
    """
    return split_rows(worker_group.world_size, _with_function(args, kwargs, "the call"), None, "the call").columns()


def collect_dp_compute_data_proto(worker_group: HasWorldSize, output: Sequence[Any]) -> Any:
    """Join the ranks' batches in rank order; references become a ``DataProtoFuture``."""
    del worker_group
    return join_or_future(output)


def _with_function(args: tuple[Any, ...], kwargs: Mapping[str, Any], method: str) -> Arguments:
    if not args or not callable(args[0]):
        got = type(args[0]).__name__ if args else "nothing"
        raise ShareError(f"{method} takes a function in first place, got {got}", argument="#1")
    return Arguments((Broadcast(args[0]), *args[1:]), kwargs)


_ROW_MODE: ModeFunctions = {
    "dispatch_fn": dispatch_dp_compute_data_proto,
    "collect_fn": collect_dp_compute_data_proto,
}
_BUILT_IN: dict[OpenEnum, ModeFunctions] = {
    Dispatch.RANK_ZERO: {"dispatch_fn": dispatch_all_to_all, "collect_fn": collect_all_to_all},
    Dispatch.ONE_TO_ALL: {"dispatch_fn": dispatch_one_to_all, "collect_fn": collect_all_to_all},
    Dispatch.ALL_TO_ALL: {"dispatch_fn": dispatch_all_to_all, "collect_fn": collect_all_to_all},
    Dispatch.DP_COMPUTE: {"dispatch_fn": dispatch_dp_compute, "collect_fn": collect_dp_compute},
    Dispatch.DP_COMPUTE_PROTO: _ROW_MODE,
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC: {
        "dispatch_fn": dispatch_dp_compute_data_proto_with_func,
        "collect_fn": collect_dp_compute_data_proto,
    },
    Dispatch.DP_COMPUTE_METRIC: {"dispatch_fn": dispatch_dp_compute_data_proto, "collect_fn": collect_dp_compute},
    Dispatch.DIRECT_ROLLOUT_METHOD: {"dispatch_fn": dispatch_all_to_all, "collect_fn": collect_all_to_all},
}
_ROWS_MODES = (Dispatch.DP_COMPUTE_PROTO, Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, Dispatch.DP_COMPUTE_METRIC)
"""Modes whose functions, when a user's mode is made of the same two, are known to split rows: padding is recognized."""

DISPATCH_MODE_FN_REGISTRY: dict[OpenEnum, ModeFunctions] = {mode: dict(fns) for mode, fns in _BUILT_IN.items()}
"""The functions of every mode. It is live: what is put here takes effect at the next call."""


def register_dispatch_mode(dispatch_mode_name: str, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> None:
    """Add a mode; it becomes an attribute of ``Dispatch``.

    Raises:
        RegistrationError: The name is taken, or one of the functions cannot be called.
    """
    _require_callables(dispatch_fn, collect_fn)
    mode = Dispatch.register(dispatch_mode_name)
    DISPATCH_MODE_FN_REGISTRY[mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


def update_dispatch_mode(dispatch_mode: OpenEnum, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> None:
    """Replace a mode's functions.

    Raises:
        RegistrationError: The mode is unknown, or one of the functions cannot be called.
    """
    _require_callables(dispatch_fn, collect_fn)
    get_predefined_dispatch_fn(dispatch_mode)
    DISPATCH_MODE_FN_REGISTRY[dispatch_mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


def get_predefined_dispatch_fn(dispatch_mode: OpenEnum) -> ModeFunctions:
    """Return a mode's ``dispatch_fn`` and ``collect_fn``.

    Raises:
        RegistrationError: The mode is unknown.
    """
    if dispatch_mode not in DISPATCH_MODE_FN_REGISTRY or dispatch_mode.name not in Dispatch.members:
        known = ", ".join(mode.name for mode in DISPATCH_MODE_FN_REGISTRY if mode.name in Dispatch.members)
        raise RegistrationError(f"{dispatch_mode!r} has no dispatch functions; known modes: {known}")
    return DISPATCH_MODE_FN_REGISTRY[dispatch_mode]


def get_predefined_execute_fn(execute_mode: OpenEnum) -> dict[str, str]:
    """Return the name of the worker group's method that executes in this mode."""
    name = "execute_rank_zero" if execute_mode == Execute.RANK_ZERO else "execute_all"
    return {"execute_fn_name": name}


def _require_callables(dispatch_fn: object, collect_fn: object) -> None:
    for name, function in (("dispatch_fn", dispatch_fn), ("collect_fn", collect_fn)):
        if not callable(function):
            raise RegistrationError(f"{name} of a dispatch mode must be callable, got {type(function).__name__}")


class Call(NamedTuple):
    """A call to be dispatched: the method's name with its group's, its registration, the group's setting for rows."""

    method: str
    registration: Registration
    uneven: Uneven | None


@dataclass(frozen=True, slots=True)
class ModeRule:
    """How one call is dispatched and its results are joined.

    ``rows`` says that rows were split, so that results can hold padding; ``joins_rows`` that they are joined to one
    batch, so that a non-blocking call gives a ``DataProtoFuture``. ``prepare`` is called with the group before the call
    begins: it may make calls of its own.
    """

    dispatch: Callable[[Any, Arguments], Dispatched]
    collect: Callable[[Any, Sequence[Any]], Any]
    rows: bool = False
    joins_rows: bool = False
    prepare: Callable[[Any], object] | None = None


_TO_ALL = ModeRule(lambda group, arguments: send_to_all(group.world_size, arguments), collect_all_to_all)
_BY_CONVENTION = ModeRule(lambda group, arguments: split_by_convention(group.world_size, arguments), collect_all_to_all)
_LISTS = ModeRule(lambda group, arguments: split_lists(group.world_size, arguments), collect_dp_compute)


def rule_for(call: Call) -> ModeRule:
    """Choose the rule of a call: the mode's own, or one made of a user's two functions.

    Raises:
        RegistrationError: The mode has no functions, or cannot be called through a group.
    """
    mode = call.registration.dispatch_mode
    functions = get_predefined_dispatch_fn(mode) if isinstance(mode, OpenEnum) else dict(mode)
    mesh_name = mesh_name_of(functions)
    if mesh_name is not None:
        return _of_mesh(mesh_name, call)
    if not isinstance(mode, OpenEnum) or functions != _BUILT_IN.get(mode):
        if not call.registration.rank_zero_only:
            for rows_mode in _ROWS_MODES:
                if functions == _BUILT_IN[rows_mode]:
                    return _built_in(rows_mode, call)
        return _custom(functions["dispatch_fn"], functions["collect_fn"])
    if mode == Dispatch.DIRECT_ROLLOUT_METHOD:
        raise RegistrationError(
            f"{call.method} is registered as {mode!r}: it is called on the worker itself, never through the group"
        )
    return _built_in(mode, call)


def _custom(dispatch_fn: DispatchFn, collect_fn: CollectFn) -> ModeRule:
    def dispatch(group: HasWorldSize, arguments: Arguments) -> Dispatched:
        args, kwargs = dispatch_fn(group, *arguments.args, **arguments.kwargs)
        return split_by_convention(group.world_size, Arguments(tuple(args), kwargs))

    return ModeRule(dispatch, collect_fn)


def _of_mesh(mesh_name: str, call: Call) -> ModeRule:
    uneven = call.registration.uneven or call.uneven

    def dispatch(group: Any, arguments: Arguments) -> Dispatched:
        return split_over_mesh(ask_mesh(group, mesh_name), arguments, uneven, call.method)

    return ModeRule(
        dispatch,
        lambda group, output: join(output, call.method),
        rows=True,
        joins_rows=True,
        prepare=lambda group: ask_mesh(group, mesh_name),
    )


def _built_in(mode: OpenEnum, call: Call) -> ModeRule:
    if mode in (Dispatch.ALL_TO_ALL, Dispatch.RANK_ZERO):
        # Where only rank 0 executes there is no list to split.
        return _TO_ALL if call.registration.rank_zero_only else _BY_CONVENTION
    if mode == Dispatch.ONE_TO_ALL:
        return _TO_ALL
    if mode == Dispatch.DP_COMPUTE:
        return _LISTS
    uneven = call.registration.uneven or call.uneven

    def dispatch(group: HasWorldSize, arguments: Arguments) -> Dispatched:
        if mode == Dispatch.DP_COMPUTE_PROTO_WITH_FUNC:
            arguments = _with_function(arguments.args, arguments.kwargs, call.method)
        return split_rows(group.world_size, arguments, uneven, call.method)

    if mode == Dispatch.DP_COMPUTE_METRIC:
        return ModeRule(dispatch, collect_dp_compute, rows=True)
    return ModeRule(dispatch, lambda group, output: join(output, call.method), rows=True, joins_rows=True)
