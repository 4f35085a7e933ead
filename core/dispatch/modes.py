"""``Dispatch`` and ``Execute``: how arguments reach the ranks, and which ranks run. Both are open to new members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from core.errors import RegistrationError


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
            RegistrationError: The name is taken, or is no Python identifier.
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
    RANK_ZERO: ClassVar[Dispatch]
    ONE_TO_ALL: ClassVar[Dispatch]
    ALL_TO_ALL: ClassVar[Dispatch]
    DP_COMPUTE: ClassVar[Dispatch]
    DP_COMPUTE_PROTO: ClassVar[Dispatch]
    DP_COMPUTE_PROTO_WITH_FUNC: ClassVar[Dispatch]
    DP_COMPUTE_METRIC: ClassVar[Dispatch]
    DIRECT_ROLLOUT_METHOD: ClassVar[Dispatch]


class Execute(OpenEnum):
    """Which ranks run a call."""

    members: ClassVar[dict[str, OpenEnum]] = {}
    ALL: ClassVar[Execute]
    RANK_ZERO: ClassVar[Execute]


for _name in (
    "RANK_ZERO",
    "ONE_TO_ALL",
    "ALL_TO_ALL",
    "DP_COMPUTE",
    "DP_COMPUTE_PROTO",
    "DP_COMPUTE_PROTO_WITH_FUNC",
    "DP_COMPUTE_METRIC",
    "DIRECT_ROLLOUT_METHOD",
):
    Dispatch.register(_name)
for _name in ("ALL", "RANK_ZERO"):
    Execute.register(_name)
