"""``Dispatch`` and ``Execute``: how arguments reach the ranks, and which ranks run. Both are open to new members.

A dispatch mode is defined by a ``ModeRule``, or by two functions in the form known from verl; the built-in modes are
in ``rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from core.data.rows import join
from core.data.shares import Uneven
from core.dispatch.mesh import join_or_future
from core.dispatch.split import Arguments, Dispatched
from core.errors import RegistrationError

ModeFunctions = dict[str, Callable[..., Any]]


class CallOptions(NamedTuple):
    """What a mode's rule knows of a call: the method as "group.method", and how it was registered.

    ``uneven`` is the method's setting for rows that do not divide, else its group's, None to leave it to the batch.
    """

    method: str
    uneven: Uneven | None = None
    rank_zero_only: bool = False


@dataclass(frozen=True, slots=True)
class ModeRule:
    """How a call's arguments are split and its results are collected.

    Args:
        split: Called with the group, the call's ``Arguments`` and its ``CallOptions``; returns the arguments of every
            rank. ``split_rows``, ``split_lists`` and ``send_to_all`` do most of it.
        collect: Called with the group and the results that count (those of ``Dispatched.sources``, in that order);
            returns what the caller gets. None returns them as a list. Not with ``joins_rows``.
        rows: Whether rows are split: padding rows, if any, are removed from the results.
        joins_rows: Whether the results are joined by rows in the order of ``Dispatched.sources``. A non-blocking call
            then returns a ``DataProtoFuture``. Needs ``rows``.
        every_rank: Whether each rank gets a part of its own, so that the mode cannot be used with
            ``Execute.RANK_ZERO``; row modes cannot in any case.
        prepare: Called with the group before the call begins; it may make calls of its own.

    Raises:
        RegistrationError: A function is not callable, or ``joins_rows`` contradicts ``rows`` or ``collect``.
    """

    split: Callable[[Any, Arguments, CallOptions], Dispatched]
    collect: Callable[[Any, Any], Any] | None = None
    rows: bool = False
    joins_rows: bool = False
    every_rank: bool = False
    prepare: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        """Check that the parts belong together."""
        for name in ("split", "collect", "prepare"):
            function = getattr(self, name)
            if not callable(function) and (name == "split" or function is not None):
                raise RegistrationError(f"{name} of a ModeRule must be callable, got {type(function).__name__}")
        if self.joins_rows and not self.rows:
            raise RegistrationError("a ModeRule with joins_rows=True needs rows=True")
        if self.joins_rows and self.collect is not None:
            raise RegistrationError(
                "a ModeRule with joins_rows=True joins the results itself; leave collect out, or leave joins_rows out "
                "and join them in collect"
            )

    @property
    def needs_every_rank(self) -> bool:
        """Whether a call of rank 0 alone would lose the parts of the other ranks."""
        return self.rows or self.every_rank

    def collected(self, group: Any, results: Any, method: str) -> Any:
        """Return what the caller gets for the ranks' results; ``method`` names the method in errors."""
        if self.joins_rows:
            return join(results, method)
        return results if self.collect is None else self.collect(group, results)


class DefinedMode(NamedTuple):
    """A mode's rule, and the two functions in verl's form that stand for it."""

    rule: ModeRule
    functions: ModeFunctions


def _functions_of(rule: ModeRule) -> ModeFunctions:
    return {"dispatch_fn": partial(_dispatch_by, rule), "collect_fn": partial(_collect_by, rule)}


def _dispatch_by(rule: ModeRule, worker_group: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return rule.split(worker_group, Arguments(args, kwargs), CallOptions("a dispatch function")).columns()


def _collect_by(rule: ModeRule, worker_group: Any, output: Sequence[Any]) -> Any:
    return join_or_future(output) if rule.joins_rows else rule.collected(worker_group, output, "the method")


DISPATCH_MODE_FN_REGISTRY: dict[OpenEnum, ModeFunctions] = {}
"""The functions of every mode. It is live: what is put here takes effect at the next call."""


class _OpenEnumMeta(type):
    """Makes a class's members reachable by attribute and by name, and lets more be added."""

    members: dict[str, OpenEnum]

    def __iter__(cls) -> Iterator[OpenEnum]:
        return iter(cls.members.values())

    def __len__(cls) -> int:
        return len(cls.members)

    def __contains__(cls, item: object) -> bool:
        return item in cls.members.values() or item in cls.members

    def __getitem__(cls, name: str) -> OpenEnum:
        return cls.members[name]

    def __getattr__(cls, name: str) -> OpenEnum:
        members: dict[str, OpenEnum] = cls.__dict__.get("members", {})
        if name in members:
            return members[name]
        if name.startswith("MEGATRON_"):
            raise AttributeError(
                f"{cls.__name__}.{name} is of verl before 0.6; register the method with "
                f"make_nd_compute_dataproto_dispatch_fn(mesh_name=...) and each worker's place in that mesh"
            )
        raise AttributeError(f"{cls.__name__} has no member {name!r}; it has {', '.join(members)}")


class OpenEnum(metaclass=_OpenEnumMeta):
    """A named value of one of the open enums; equal by name, so that it survives a trip between processes."""

    members: ClassVar[dict[str, OpenEnum]]

    def __init__(self, name: str) -> None:
        """Make a value; ``register`` makes it a member."""
        self.name = name

    @property
    def value(self) -> str:
        """Return the name: each member has a value of its own."""
        return self.name

    @classmethod
    def register(cls, name: str) -> OpenEnum:
        """Add a member and return it.

        Raises:
            RegistrationError: The name is taken, or is not a Python identifier.
        """
        if not name.isidentifier():
            raise RegistrationError(f"{name!r} cannot be a member of {cls.__name__}: it is not an identifier")
        name = name.upper()
        if name in cls.members:
            raise RegistrationError(f"{cls.__name__}.{name} exists already")
        member = cls.members[name] = cls(name)
        # An attribute of the class is found ten times quicker than by the metaclass; each call asks for several.
        setattr(cls, name, member)
        return member

    @classmethod
    def remove(cls, name: str) -> None:
        """Take a member out.

        Raises:
            RegistrationError: There is none of this name.
        """
        if cls.members.pop(name.upper(), None) is None:
            raise RegistrationError(f"{cls.__name__} has no member {name!r}")
        delattr(cls, name.upper())

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, OpenEnum) and type(other) is type(self) and other.name == self.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __reduce__(self) -> tuple[type[OpenEnum], tuple[str]]:
        return type(self), (self.name,)


class Dispatch(OpenEnum):
    """How the arguments of a call reach the ranks and how their results are joined."""

    members: ClassVar[dict[str, OpenEnum]] = {}
    defined: ClassVar[dict[OpenEnum, DefinedMode]] = {}
    RANK_ZERO: ClassVar[Dispatch]
    ONE_TO_ALL: ClassVar[Dispatch]
    ALL_TO_ALL: ClassVar[Dispatch]
    DP_COMPUTE: ClassVar[Dispatch]
    DP_COMPUTE_PROTO: ClassVar[Dispatch]
    DP_COMPUTE_PROTO_WITH_FUNC: ClassVar[Dispatch]
    DP_COMPUTE_METRIC: ClassVar[Dispatch]
    DIRECT_ROLLOUT_METHOD: ClassVar[Dispatch]

    @classmethod
    def register(cls, name: str, rule: ModeRule | None = None, functions: ModeFunctions | None = None) -> OpenEnum:
        """Add a mode and return it.

        Args:
            name: The mode's name, an identifier; it becomes an attribute in upper case.
            rule: How its calls are split and collected.
            functions: ``dispatch_fn`` and ``collect_fn`` in verl's form; with a rule, what stands for it in
                ``DISPATCH_MODE_FN_REGISTRY``.

        Raises:
            RegistrationError: The name is taken or not an identifier, or ``rule`` is not a ``ModeRule``.
        """
        if rule is not None and not isinstance(rule, ModeRule):
            raise RegistrationError(f"the rule of a dispatch mode must be a ModeRule, got {type(rule).__name__}")
        mode = super().register(name)
        if rule is not None:
            cls.defined[mode] = DefinedMode(rule, functions or _functions_of(rule))
            functions = cls.defined[mode].functions
        if functions is not None:
            DISPATCH_MODE_FN_REGISTRY[mode] = dict(functions)
        return mode

    @classmethod
    def remove(cls, name: str) -> None:
        """Take a mode out, with its functions.

        Raises:
            RegistrationError: There is none of this name.
        """
        super().remove(name)
        mode = cls(name.upper())
        cls.defined.pop(mode, None)
        DISPATCH_MODE_FN_REGISTRY.pop(mode, None)


class Execute(OpenEnum):
    """Which ranks run a call."""

    members: ClassVar[dict[str, OpenEnum]] = {}
    ALL: ClassVar[Execute]
    RANK_ZERO: ClassVar[Execute]


for _name in ("ALL", "RANK_ZERO"):
    Execute.register(_name)
