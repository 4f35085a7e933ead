"""Which of a class's methods a group offers, and the callables that stand for them on the group."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from core.dispatch import Registration, registration_of
from core.errors import RegistrationError
from core.worker.fused import role_method_name


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method of a worker class, or any method that is called ``by_name``; of ``role`` if one is given.

    ``takes_self`` is False for a static method, whose first parameter is the caller's.
    """

    name: str
    registration: Registration
    function: Callable[..., Any]
    by_name: bool = False
    role: str = ""
    takes_self: bool = True

    @property
    def remote_name(self) -> str:
        """Return how the method is found on the worker: roles that share a process have theirs under their names."""
        if not self.role:
            return self.name
        return f"{self.role}.{self.name}" if self.by_name else role_method_name(self.role, self.name)


def registered_methods(user_class: type, taken: Collection[str], role: str = "") -> tuple[Method, ...]:
    """Return the registered methods of a class, inherited ones too, by name.

    Raises:
        RegistrationError: A method would hide one of the names ``taken`` on the group.
    """
    methods = []
    for name in dir(user_class):
        found = inspect.getattr_static(user_class, name, None)
        function = getattr(found, "__func__", found)
        registration = registration_of(function)
        if registration is None or not callable(function):
            continue
        if name in taken:
            raise RegistrationError(
                f"{user_class.__name__}.{name} is registered, but every worker group has its own {name!r}, which it "
                f"would hide; rename the method"
            )
        takes_self = not isinstance(found, staticmethod)
        methods.append(Method(name, registration, function, role=role, takes_self=takes_self))
    return tuple(methods)


class BoundMethod:
    """A worker's method on its group: calling it runs the method on the ranks. Its type bears the method's name."""

    def __init__(self, method: Method, call: Callable[[Method, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """Bind ``method`` to the group that does ``call``."""
        self.registration = method.registration
        self._method = method
        self._call = call
        self.__name__ = method.name
        self.__doc__ = method.function.__doc__
        self.__wrapped__ = method.function
        signature = inspect.signature(method.function)
        parameters = list(signature.parameters.values())
        self.__signature__ = signature.replace(parameters=parameters[1:] if method.takes_self else parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method on the ranks, as it was registered."""
        return self._call(self._method, args, kwargs)

    def __repr__(self) -> str:
        return f"<bound method {self._method.name} ({self.registration.dispatch_name})>"


def bind(method: Method, call: Callable[[Method, tuple[Any, ...], dict[str, Any]], Any]) -> BoundMethod:
    """Return the callable for a method; code for verl looks at the name of its type."""
    kind: type[BoundMethod] = type(method.name, (BoundMethod,), {})
    return kind(method, call)
