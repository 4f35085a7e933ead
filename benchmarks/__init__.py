"""Ratios that Podium holds itself to, each measured side by side in one run."""
