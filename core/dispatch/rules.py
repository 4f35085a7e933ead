"""What each dispatch mode does with arguments and results, and the registry that users may extend.

The functions with names of the field (``dispatch_one_to_all`` ...) take a worker group first, that is anything with a
``world_size``, and can be used in modes of one's own. They and the group's calls share the rules of ``split``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, overload

from core.dispatch.mesh import ask_mesh, join_or_future, mesh_name_of, split_over_mesh
from core.dispatch.modes import (
    DISPATCH_MODE_FN_REGISTRY,
    CallOptions,
    Dispatch,
    Execute,
    ModeFunctions,
    ModeRule,
    OpenEnum,
)
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
        ShareError: An argument is not a list of ``world_size`` items.
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


def _split_rows(group: HasWorldSize, arguments: Arguments, call: CallOptions) -> Dispatched:
    return split_rows(group.world_size, arguments, call.uneven, call.method)


def _split_rows_with_function(group: HasWorldSize, arguments: Arguments, call: CallOptions) -> Dispatched:
    return _split_rows(group, _with_function(arguments.args, arguments.kwargs, call.method), call)


def _split_by_convention(group: HasWorldSize, arguments: Arguments, call: CallOptions) -> Dispatched:
    # Where only rank 0 executes there is no list to split.
    split = send_to_all if call.rank_zero_only else split_by_convention
    return split(group.world_size, arguments)


_TO_ALL = ModeRule(lambda group, arguments, call: send_to_all(group.world_size, arguments))
_BY_CONVENTION = ModeRule(_split_by_convention)
_LISTS = ModeRule(
    lambda group, arguments, call: split_lists(group.world_size, arguments), collect_dp_compute, every_rank=True
)
_PASS_THROUGH: ModeFunctions = {"dispatch_fn": dispatch_all_to_all, "collect_fn": collect_all_to_all}


def _define(
    name: str,
    rule: ModeRule | None,
    dispatch_fn: DispatchFn = dispatch_all_to_all,
    collect_fn: CollectFn = collect_all_to_all,
) -> None:
    Dispatch.register(name, rule, {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn})


_define("RANK_ZERO", _BY_CONVENTION)
_define("ONE_TO_ALL", _TO_ALL, dispatch_one_to_all)
_define("ALL_TO_ALL", _BY_CONVENTION)
_define("DP_COMPUTE", _LISTS, dispatch_dp_compute, collect_dp_compute)
_define(
    "DP_COMPUTE_PROTO",
    ModeRule(_split_rows, rows=True, joins_rows=True),
    dispatch_dp_compute_data_proto,
    collect_dp_compute_data_proto,
)
_define(
    "DP_COMPUTE_PROTO_WITH_FUNC",
    ModeRule(_split_rows_with_function, rows=True, joins_rows=True),
    dispatch_dp_compute_data_proto_with_func,
    collect_dp_compute_data_proto,
)
_define(
    "DP_COMPUTE_METRIC",
    ModeRule(_split_rows, collect_dp_compute, rows=True),
    dispatch_dp_compute_data_proto,
    collect_dp_compute,
)
_define("DIRECT_ROLLOUT_METHOD", None)


@overload
def register_dispatch_mode(dispatch_mode_name: str, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> None: ...
@overload
def register_dispatch_mode(dispatch_mode_name: str, *, rule: ModeRule) -> None: ...
def register_dispatch_mode(
    dispatch_mode_name: str,
    dispatch_fn: DispatchFn | None = None,
    collect_fn: CollectFn | None = None,
    *,
    rule: ModeRule | None = None,
) -> None:
    """Add a mode; it becomes an attribute of ``Dispatch``.

    Args:
        dispatch_mode_name: Its name, an identifier.
        dispatch_fn: Called with the group and the call's arguments; returns one list over the ranks per argument.
        collect_fn: Called with the group and the results by rank.
        rule: In place of the two functions: what ``Dispatch.register`` takes. Only a rule can split rows with padding
            and return a ``DataProtoFuture``.

    Raises:
        RegistrationError: The name is taken, one of the functions cannot be called, or both forms are given.
    """
    if rule is not None:
        if dispatch_fn is not None or collect_fn is not None:
            raise RegistrationError(
                f"dispatch mode {dispatch_mode_name!r} is given a rule and functions; pass either rule=... or "
                f"dispatch_fn and collect_fn"
            )
        Dispatch.register(dispatch_mode_name, rule)
        return
    Dispatch.register(dispatch_mode_name, functions=_mode_functions(dispatch_fn=dispatch_fn, collect_fn=collect_fn))


def update_dispatch_mode(dispatch_mode: OpenEnum, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> None:
    """Replace a mode's functions.

    Raises:
        RegistrationError: The mode is unknown, or one of the functions cannot be called.
    """
    functions = _mode_functions(dispatch_fn=dispatch_fn, collect_fn=collect_fn)
    get_predefined_dispatch_fn(dispatch_mode)
    DISPATCH_MODE_FN_REGISTRY[dispatch_mode] = functions


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


def _mode_functions(**functions: object) -> ModeFunctions:
    checked: ModeFunctions = {}
    for name, function in functions.items():
        if not callable(function):
            raise RegistrationError(f"{name} of a dispatch mode must be callable, got {type(function).__name__}")
        checked[name] = function
    return checked


def rule_of_mode(mode: OpenEnum) -> ModeRule | None:
    """Return the rule a mode was defined with, None for a mode made of two functions."""
    defined = Dispatch.defined.get(mode)
    return None if defined is None else defined.rule


def rule_for(mode: OpenEnum | Mapping[str, Callable[..., Any]], call: CallOptions) -> ModeRule:
    """Choose the rule of a call: the mode's own, or one made of a user's two functions.

    Raises:
        RegistrationError: The mode has no functions, or cannot be called through a group.
    """
    if isinstance(mode, OpenEnum):
        functions = get_predefined_dispatch_fn(mode)
        defined = Dispatch.defined.get(mode)
        if defined is not None and functions == defined.functions:
            return defined.rule
        if mode == Dispatch.DIRECT_ROLLOUT_METHOD and functions == _PASS_THROUGH:
            raise RegistrationError(
                f"{call.method} is registered as {mode!r}: it is called on the worker itself, never through the group"
            )
    else:
        functions = dict(mode)
    mesh_name = mesh_name_of(functions)
    if mesh_name is not None:
        return _of_mesh(mesh_name)
    if not call.rank_zero_only:
        # A user's mode made of the functions of a row mode is known to split rows: padding is recognized.
        for rule, own in Dispatch.defined.values():
            if rule.rows and functions == own:
                return rule
    return _custom(functions["dispatch_fn"], functions["collect_fn"])


def _custom(dispatch_fn: DispatchFn, collect_fn: CollectFn) -> ModeRule:
    def split(group: HasWorldSize, arguments: Arguments, call: CallOptions) -> Dispatched:
        del call
        args, kwargs = dispatch_fn(group, *arguments.args, **arguments.kwargs)
        return split_by_convention(group.world_size, Arguments(tuple(args), kwargs))

    return ModeRule(split, collect_fn)


def _of_mesh(mesh_name: str) -> ModeRule:
    def split(group: Any, arguments: Arguments, call: CallOptions) -> Dispatched:
        return split_over_mesh(ask_mesh(group, mesh_name), arguments, call.uneven, call.method)

    return ModeRule(split, rows=True, joins_rows=True, prepare=lambda group: ask_mesh(group, mesh_name))
