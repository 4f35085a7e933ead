"""Inputs of the store besides core's events, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Who runs what, where and since when.

    ``started_ns`` is the start on the driver clock, the zero of every time in the file; ``started_wall_ns`` is the same
    moment on the wall clock. ``git`` is the commit of the script's folder. No argument of the
    script is kept: a token could be among them.
    """

    uid: str
    name: str
    script: str
    host: str
    pid: int
    podium_version: str
    python_version: str
    ray_version: str
    started_wall_ns: int
    started_ns: int
    git: str = ""


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """One attempt to change something from outside, also a refused one.

    ``at_ns`` is on the driver clock. ``actor`` is the name of the token, never the token. ``outcome`` is such as
    "asked", "accepted", "refused" or "unauthorised"; ``operation_id`` is empty when there is none.
    """

    at_ns: int
    actor: str
    remote: str
    user_agent: str
    request_id: str
    action: str
    target: str
    expected_generation: int | None
    outcome: str
    detail: str = ""
    operation_id: str = ""
