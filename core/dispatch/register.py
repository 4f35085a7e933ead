"""``@register``: mark a worker method as callable through its group."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from core.data.shares import Uneven
from core.dispatch.modes import Dispatch, Execute, OpenEnum
from core.dispatch.rules import rule_of_mode
from core.errors import RegistrationError

P = ParamSpec("P")
R = TypeVar("R")

MAGIC_ATTR = "attrs_of_podium"
"""The attribute of a registered method under which its registration stands, as a mapping."""

DispatchMode = Dispatch | OpenEnum | Mapping[str, Callable[..., Any]]

_TWO_SIDED = {"gloo", "nccl"}
"""Transports of Ray's in which the sender takes part too: ``docs/bytes.md`` has why they are not used."""


@dataclass(frozen=True, slots=True)
class Registration:
    """How a method was registered. ``uneven`` is None when the batch or the group is to say."""

    dispatch_mode: DispatchMode
    execute_mode: Execute | OpenEnum
    blocking: bool
    materialize_futures: bool
    uneven: Uneven | None
    zero_copy: bool = False
    timeout_s: float | None = None
    tensor_transport: str = ""

    @property
    def dispatch_name(self) -> str:
        """Return the mode's name; a pair of functions is "custom"."""
        return self.dispatch_mode.name if isinstance(self.dispatch_mode, OpenEnum) else "custom"

    @property
    def rank_zero_only(self) -> bool:
        """Whether rank 0 alone runs the call."""
        return self.execute_mode == Execute.RANK_ZERO or self.dispatch_mode == Dispatch.RANK_ZERO


def register(
    dispatch_mode: DispatchMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute | OpenEnum = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
    uneven: str | Uneven | None = None,
    zero_copy: bool = False,
    timeout_s: float | None = None,
    tensor_transport: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a worker method callable through its worker group.

    Args:
        dispatch_mode: A member of ``Dispatch``, or ``{"dispatch_fn": ..., "collect_fn": ...}``.
        execute_mode: ``Execute.ALL`` or ``Execute.RANK_ZERO``.
        blocking: Whether a call waits for its result, or returns a ``DataProtoFuture`` or references.
        materialize_futures: Whether ``DataProtoFuture`` arguments are resolved in the worker before the method runs.
        uneven: What to do with rows that do not divide: "error", "pad" or "split"; None leaves it to the group and
            the batch.
        zero_copy: Whether the method only reads its arrays: they arrive as read-only views of the cluster's memory.
            Tensors can be written to in any case.
        timeout_s: How long a call, or the ``get`` of its future, waits for the ranks before it raises
            ``CallTimeoutError``; 0 for as long as it takes, None leaves it to the group. A ``core.deadline`` block
            around the call counts before it.
        tensor_transport: A direct transport of Ray's, such as "nixl": the tensors of a result stay on the worker's
            device until another group's workers take them from there; see ``docs/bytes.md``. Only for methods that
            return a ``DataProtoFuture``. Empty for the cluster's shared memory.

    Raises:
        RegistrationError: The mode is unknown, incomplete, or makes no sense with ``execute_mode``; ``timeout_s`` is
            negative; ``tensor_transport`` cannot be used, or not with a call that blocks.
    """
    if timeout_s is not None and not timeout_s >= 0:
        raise RegistrationError(f"timeout_s must not be negative, got {timeout_s}; 0 is for no deadline")
    _check_dispatch_mode(dispatch_mode)
    _check_execute_mode(execute_mode)
    _check_pair(dispatch_mode, execute_mode)
    _check_transport(tensor_transport, blocking)
    registration = Registration(
        dispatch_mode,
        execute_mode,
        blocking,
        materialize_futures,
        None if uneven is None else as_uneven(uneven),
        zero_copy,
        timeout_s,
        tensor_transport,
    )

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        if isinstance(method, (staticmethod, classmethod)):
            raise RegistrationError(
                f"{method.__func__.__qualname__}: write @{type(method).__name__} above @register(...), not below it"
            )
        if not callable(method):
            raise RegistrationError(f"@register marks methods, got {type(method).__name__}")
        marked = _passthrough(method)
        for wrap in _wrappers:
            marked = wrap(marked, registration)
        setattr(
            marked,
            MAGIC_ATTR,
            {
                "dispatch_mode": registration.dispatch_mode,
                "execute_mode": registration.execute_mode,
                "blocking": registration.blocking,
                "materialize_futures": registration.materialize_futures,
                "uneven": registration.uneven,
                "zero_copy": registration.zero_copy,
                "timeout_s": registration.timeout_s,
                "tensor_transport": registration.tensor_transport,
            },
        )
        return marked

    return decorate


def _passthrough(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap the method, so that one function registered twice keeps two registrations."""
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def inner_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await method(*args, **kwargs)

        return inner_async  # type: ignore[return-value]

    @wraps(method)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(*args, **kwargs)

    return inner


MethodWrapper = Callable[[Callable[..., Any], Registration], Callable[..., Any]]
"""Takes a method that is being registered, and how; returns what is registered in its place."""

_wrappers: list[MethodWrapper] = []
_foreign_attributes: list[str] = []


def wrap_registered_methods(wrapper: MethodWrapper) -> Callable[[], None]:
    """Have ``wrapper`` around every method that is registered from now on; return a function that ends that.

    For what must happen in the worker before a method sees its arguments or after it has made its result, such as
    fetching what a reference of another system points to. A wrapper gets the method and its ``Registration`` and
    returns a function of the same signature, for an ``async def`` method an ``async def`` one; use ``functools.wraps``.
    Methods that were registered before stay as they are: call this before the module with the workers is imported. The
    wrapper travels to the workers with the method.
    """
    _wrappers.append(wrapper)

    def end() -> None:
        if wrapper in _wrappers:
            _wrappers.remove(wrapper)

    return end


def accept_registrations(attribute: str) -> Callable[[], None]:
    """Bind methods that another library's decorator registered, too; return a function that ends that.

    Such a decorator leaves a mapping under ``attribute`` of the method, with ``dispatch_mode``, ``execute_mode`` and,
    if it has them, ``blocking`` and ``materialize_futures``. Modes are taken by their names, so that its own enums do;
    a mapping of ``dispatch_fn`` and ``collect_fn`` is taken as it is. Our own registration counts before it.
    """
    if attribute != MAGIC_ATTR and attribute not in _foreign_attributes:
        _foreign_attributes.append(attribute)

    def end() -> None:
        if attribute in _foreign_attributes:
            _foreign_attributes.remove(attribute)

    return end


def attributes_of(method: object) -> Mapping[str, Any] | None:
    """Return what ``register``, or a decorator whose registrations are accepted, left on a method; None if nothing."""
    function = getattr(method, "__func__", method)
    attrs = getattr(function, MAGIC_ATTR, None)
    if isinstance(attrs, Mapping):
        return attrs
    for attribute in _foreign_attributes:
        foreign = getattr(function, attribute, None)
        if isinstance(foreign, Mapping):
            name = getattr(function, "__qualname__", repr(function))
            return {
                **foreign,
                "dispatch_mode": _own_mode(Dispatch, foreign.get("dispatch_mode"), name),
                "execute_mode": _own_mode(Execute, foreign.get("execute_mode", Execute.ALL), name),
            }
    return None


def _own_mode(kind: type[OpenEnum], mode: Any, method: str) -> Any:
    """Return our member of the name that another library's mode has.

    Raises:
        RegistrationError: There is none.
    """
    if isinstance(mode, Mapping):
        return mode
    name = getattr(mode, "name", None) or getattr(mode, "_name", None)
    if name not in kind.members:
        raise RegistrationError(
            f"{method} is registered by another library as {mode!r}, and {kind.__name__} has no member {name!r}; add "
            f"it with register_dispatch_mode, or register the method with core.register"
        )
    return kind.members[name]


def registration_of(method: object) -> Registration | None:
    """Return how ``method`` was registered, None if it was not; a static or class method as its function was."""
    attrs = attributes_of(method)
    if attrs is None:
        return None
    return Registration(
        attrs["dispatch_mode"],
        attrs["execute_mode"],
        attrs.get("blocking", True),
        attrs.get("materialize_futures", True),
        attrs.get("uneven"),
        attrs.get("zero_copy", False),
        attrs.get("timeout_s"),
        attrs.get("tensor_transport", ""),
    )


def as_uneven(value: str | Uneven) -> Uneven:
    """Read a setting of what to do with uneven rows.

    Raises:
        RegistrationError: It is none of them.
    """
    try:
        return Uneven(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in Uneven)
        raise RegistrationError(f"uneven={value!r} is not known; choose from {known}") from None


def _check_dispatch_mode(dispatch_mode: object) -> None:
    if isinstance(dispatch_mode, Mapping):
        for key in ("dispatch_fn", "collect_fn"):
            if not callable(dispatch_mode.get(key)):
                raise RegistrationError(f"a dispatch mode given as a mapping needs a callable {key!r}")
    elif not isinstance(dispatch_mode, Dispatch) or dispatch_mode.name not in Dispatch.members:
        raise RegistrationError(
            f"{dispatch_mode!r} is not a dispatch mode; choose from {', '.join(Dispatch.members)} or pass "
            f"{{'dispatch_fn': ..., 'collect_fn': ...}}"
        )


def _check_execute_mode(execute_mode: object) -> None:
    if not isinstance(execute_mode, Execute) or execute_mode.name not in Execute.members:
        raise RegistrationError(f"{execute_mode!r} is not an execute mode; choose from {', '.join(Execute.members)}")


def _check_pair(dispatch_mode: object, execute_mode: object) -> None:
    rule = rule_of_mode(dispatch_mode) if isinstance(dispatch_mode, OpenEnum) else None
    if rule is not None and rule.needs_every_rank and execute_mode == Execute.RANK_ZERO:
        raise RegistrationError(
            f"{dispatch_mode!r} sends one shard to every rank, with {execute_mode!r} all but the first would be lost; "
            f"use Dispatch.ONE_TO_ALL or Dispatch.RANK_ZERO"
        )


def _check_transport(transport: str, blocking: bool) -> None:
    if not isinstance(transport, str):
        raise RegistrationError(f"tensor_transport must be a name such as 'nixl', or '' for none, got {transport!r}")
    if transport.lower() in _TWO_SIDED:
        raise RegistrationError(
            f"tensor_transport={transport!r} needs the sender's part in each transfer, and Ray ends both workers when "
            f"one fails; use one where the receiver alone acts, such as 'nixl'"
        )
    if transport and blocking:
        raise RegistrationError(
            f"tensor_transport={transport!r} is for results that stay on the cluster, and this method's go to the "
            f"driver; register it with blocking=False"
        )
