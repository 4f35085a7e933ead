"""Which Podium this is, and where it lies: drivers and workers compare both."""

from __future__ import annotations

import os

VERSION = "0.1.0"
PACKAGE_PATH = os.path.dirname(os.path.abspath(__file__))
