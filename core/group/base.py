"""``WorkerGroup``: what every group is, with the seams that drivers for verl extend under their own names."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from functools import wraps
from typing import Any

from core import runtime as runtimes
from core.cluster.deadline import fetch_in_time
from core.dispatch import get_predefined_dispatch_fn, get_predefined_execute_fn
from core.dispatch.chunks import _padding_size_key
from core.dispatch.modes import OpenEnum
from core.errors import UsageError
from core.group.bind import Method, bind, registered_methods

FuncGenerator = Callable[..., Callable[..., Any]]
"""Called with a group and a method's name, and ``dispatch_fn``, ``collect_fn``, ``execute_fn``, ``blocking``."""


class WorkerGroup:
    """The base of ``RayWorkerGroup``, and the type to check for: groups are made by ``RayWorkerGroup``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: a group needs workers.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{type(self).__name__} cannot be made by itself; make a RayWorkerGroup(pool, RayClassWithInitArgs(...)), "
            f"or derive from it"
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have a constructor of a subclass's own checked: it must call ours."""
        super().__init_subclass__(**kwargs)
        construct = cls.__dict__.get("__init__")
        if construct is not None:
            cls.__init__ = _checked(construct)  # type: ignore[method-assign]

    def _bind_worker_method(self, user_defined_cls: Any, func_generator: FuncGenerator) -> list[str]:
        """Make the registered methods of a class this group's, as ``func_generator`` makes them; return their names."""
        methods = registered_methods(getattr(user_defined_cls, "__ray_actor_class__", user_defined_cls), ())
        for method in methods:
            setattr(self, method.name, self._generated(method, func_generator))
        return [method.name for method in methods]

    def _generated(self, method: Method, generate: FuncGenerator) -> Callable[..., Any]:
        if generate is func_generator:
            return bind(method, self._perform)
        registration = method.registration
        mode = registration.dispatch_mode
        functions = get_predefined_dispatch_fn(mode) if isinstance(mode, OpenEnum) else mode
        return generate(
            self,
            method.name,
            dispatch_fn=functions["dispatch_fn"],
            collect_fn=functions["collect_fn"],
            execute_fn=getattr(self, get_predefined_execute_fn(registration.execute_mode)["execute_fn_name"]),
            blocking=registration.blocking,
        )

    def _perform(self, method: Method, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Make a call."""
        raise NotImplementedError


def func_generator(
    group: Any,
    method_name: str,
    dispatch_fn: Callable[..., Any],
    collect_fn: Callable[..., Any],
    execute_fn: Callable[..., Any],
    blocking: bool,
) -> Callable[..., Any]:
    """Return a method of a group made of three functions; its type bears the method's name.

    ``_bind_worker_method`` takes it for a request of Podium's own methods, which know of padding and of futures.
    """

    def call(_self: object, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = dispatch_fn(group, *args, **kwargs)
        kwargs = dict(kwargs)
        n_padding = kwargs.pop(_padding_size_key, 0)
        output = execute_fn(method_name, *args, **kwargs)
        if blocking:
            cluster = runtimes.current().cluster
            refs = list(output) if isinstance(output, (list, tuple)) else [output]
            values = fetch_in_time(cluster, refs)
            output = values if isinstance(output, (list, tuple)) else values[0]
        output = collect_fn(group, output)
        return output[: len(output) - n_padding] if n_padding else output

    made: Callable[..., Any] = type(method_name, (), {"__call__": call})()
    return made


def get_random_string(length: int) -> str:
    """Return ``length`` random letters and digits; a seed of ``random`` has no effect on it."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))


def _checked(construct: Callable[..., None]) -> Callable[..., None]:
    """Wrap a subclass's constructor: what it leaves must be a group with workers."""

    @wraps(construct)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if "_state" not in self.__dict__:
            raise UsageError(
                f"{construct.__qualname__} did not call super().__init__(...): RayWorkerGroup starts the workers there"
            )

    return checked
