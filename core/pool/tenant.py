"""A worker group, as far as its pool looks at it."""

from __future__ import annotations

from typing import Protocol


class Tenant(Protocol):
    """A worker group, as far as its pool looks at it."""

    @property
    def name(self) -> str:
        """Return the group's name."""
        ...

    def close(self) -> None:
        """End its workers."""
        ...

    def release(self) -> None:
        """End its workers unless they are to outlive the driver."""
        ...
