"""Checks whether this machine can run Podium: facts are collected in one place and judged in another."""

from __future__ import annotations

from app.doctor.checks import Finding, Level, check_all
from app.doctor.facts import Facts, collect

__all__ = ["Facts", "Finding", "Level", "check_all", "collect"]
