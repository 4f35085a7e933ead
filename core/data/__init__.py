"""The batch, its parts and how they travel."""

from __future__ import annotations

from core.data.proto import DataProto, DataProtoItem

__all__ = ["DataProto", "DataProtoItem"]
