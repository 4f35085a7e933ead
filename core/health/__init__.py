"""Watching worker processes, and finding out how one that died came to its end."""
