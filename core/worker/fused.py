"""Several roles in one process: a worker that holds one worker per role."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

from core.dispatch import MAGIC_ATTR, attributes_of, registration_of
from core.errors import RegistrationError
from core.worker.live import ReplicatedState, SavesState, can_call
from core.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Role:
    """A role's class and the arguments of its constructor."""

    user_class: type
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class FusedWorker(Worker):
    """One rank of every role, in one process.

    The roles are attributes of their names, and each of them finds the others in ``fused_worker_dict``. A role's
    registered method ``update`` is the fused worker's ``actor_update``.
    """

    podium_roles: ClassVar[Mapping[str, Role]] = {}

    def __init__(self) -> None:
        """Build every role, in the order they were given, then give each one the others."""
        super().__init__()
        for role, spec in self.podium_roles.items():
            worker = spec.user_class(*spec.args, **spec.kwargs)
            self.fused_worker_dict[role] = worker
            setattr(self, role, worker)
        for worker in self.fused_worker_dict.values():
            setattr(worker, self.fused_worker_attr_name, self.fused_worker_dict)

    def save_state(self) -> Any:
        """Return what each role saves, or what is to be awaited for it; see ``core.worker.live``."""
        return _all_of({role: worker.save_state() for role, worker in self._savers()})

    def save_replica(self) -> Any:
        """Return what each role saves, of replicated ones this rank's replica: rank 0 may be gone."""
        return _all_of(
            {
                role: worker.save_replica() if isinstance(worker, ReplicatedState) else worker.save_state()
                for role, worker in self._savers()
            }
        )

    def load_state(self, states: Sequence[Mapping[str, Any] | None]) -> Any:
        """Hand each role what it saved; None stands for all roles of a rank that died."""
        roles = self._savers()
        each = {role: [None if state is None else state[role] for state in states] for role, _ in roles}
        return _all_of({role: _load(worker, each[role]) for role, worker in roles})

    def _savers(self) -> list[tuple[str, SavesState]]:
        """Return the roles whose state is carried over; a method of that name may be something else."""
        return [
            (role, worker)
            for role, worker in self.fused_worker_dict.items()
            if can_call(type(worker), "save_state", 0) and can_call(type(worker), "load_state", 1)
        ]


def _load(worker: Any, states: Sequence[Any]) -> Any:
    """Return nothing, or what is to be awaited of an ``async def`` hook."""
    return worker.load_state(states)


def _all_of(values: Mapping[str, Any]) -> Any:
    """Return the values, or a coroutine of them when some of them are to be awaited."""
    if not any(inspect.isawaitable(value) for value in values.values()):
        return dict(values)

    async def awaited() -> dict[str, Any]:
        return {role: await value if inspect.isawaitable(value) else value for role, value in values.items()}

    return awaited()


def role_method_name(role: str, method: str) -> str:
    """Return the name that a role's method has on the fused worker."""
    return f"{role}_{method}"


def fused_class(name: str, roles: Mapping[str, Role]) -> type[FusedWorker]:
    """Return a class of fused workers with every registered method of every role.

    Raises:
        RegistrationError: There is no role, a role's name is not an identifier or hides an attribute of every worker,
            or two methods would get one name.
    """
    if not roles:
        raise RegistrationError("a fused worker needs at least one role")
    namespace: dict[str, Any] = {"podium_roles": dict(roles), "__module__": __name__}
    for role, spec in roles.items():
        if not role.isidentifier() or hasattr(FusedWorker, role):
            raise RegistrationError(
                f"{role!r} cannot be a role: it is not an identifier, or every worker has it already"
            )
        for method in dir(spec.user_class):
            function = inspect.getattr_static(spec.user_class, method, None)
            if registration_of(function) is None:
                continue
            own_name = role_method_name(role, method)
            if own_name in namespace:
                raise RegistrationError(f"{own_name} is a method of two roles; rename one of them")
            namespace[own_name] = _delegate(role, method, getattr(function, "__func__", function))
    return type(name, (FusedWorker,), namespace)


def _delegate(role: str, method: str, function: Any) -> Callable[..., Any]:
    """Return the fused worker's method that calls the role's, with its registration, signature and docstring."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def delegate_async(self: FusedWorker, *args: Any, **kwargs: Any) -> Any:
            return await getattr(self.fused_worker_dict[role], method)(*args, **kwargs)

        made: Callable[..., Any] = delegate_async
    else:

        @wraps(function)
        def delegate(self: FusedWorker, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.fused_worker_dict[role], method)(*args, **kwargs)

        made = delegate
    setattr(made, MAGIC_ATTR, attributes_of(function))
    return made
