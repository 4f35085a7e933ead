"""Who a visitor is: tokens, the cookies made from them, and what each allows."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """What a credential allows; CONTROL includes READ."""

    NOBODY = "nobody"
    READ = "read"
    CONTROL = "control"


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """The secrets of one run's server; never shown, logged or recorded.

    A browser holds a session value instead of the token it came with, so that a cookie that leaks is worth nothing
    after the run. ``csrf`` can only be read by a script of our own pages. ``control`` is empty on a read-only server.
    """

    read: str
    control: str
    read_session: str
    control_session: str
    csrf: str

    @classmethod
    def make(cls, control: bool) -> Tokens:
        """Return new secrets, with a control token if ``control``."""
        return cls(
            read=secrets.token_urlsafe(32),
            control=secrets.token_urlsafe(32) if control else "",
            read_session=secrets.token_urlsafe(32),
            control_session=secrets.token_urlsafe(32) if control else "",
            csrf=secrets.token_urlsafe(32),
        )

    def scope_of_token(self, given: str) -> Scope:
        """Return what the token ``given`` allows."""
        return _which(given, self.read, self.control)

    def scope_of_session(self, given: str) -> Scope:
        """Return what the cookie value ``given`` allows."""
        return _which(given, self.read_session, self.control_session)

    def session_of(self, scope: Scope) -> str:
        """Return the cookie value for ``scope``."""
        return self.control_session if scope is Scope.CONTROL else self.read_session

    def is_csrf(self, given: str) -> bool:
        """Return whether ``given`` is the value our pages send with a mutation."""
        return _same(given, self.csrf)


def _which(given: str, read: str, control: str) -> Scope:
    # Both are compared whatever the first says, so that the time taken reveals nothing.
    is_read, is_control = _same(given, read), _same(given, control)
    if is_control:
        return Scope.CONTROL
    return Scope.READ if is_read else Scope.NOBODY


def _same(given: str, expected: str) -> bool:
    return bool(expected) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8"))
