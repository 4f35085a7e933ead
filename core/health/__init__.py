"""Watching worker processes, and finding out how one that died came to its end."""

from core.health.settings import check_workers_alive, set_health

__all__ = ["check_workers_alive", "set_health"]
