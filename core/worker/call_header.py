"""What a rank is asked to do, as it travels to it."""

from __future__ import annotations

import json
from typing import NamedTuple


class Header(NamedTuple):
    """What a rank is asked to do, in front of the arguments.

    It travels as bytes, which Ray sends as they are. ``n_real`` and ``n_padding`` count the rows sent
    to the rank; ``n_real`` is -1 when none were, or when they come in a future.
    ``trims`` says which results may hold padding rows: "rows" (any value with rows), "batches" (only batches: the mode
    returns values by rank), or "" (no rows are split). ``views`` says that arrays of futures stay read-only views.
    ``transport`` names the direct transport by which others take the result, "" for the cluster's store.
    """

    method: str
    n_real: int
    n_padding: int
    materialize: bool
    trims: str
    views: bool = False
    transport: str = ""

    def pack(self) -> bytes:
        """Return the fields as bytes."""
        return json.dumps(self).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> Header:
        """Return the header that ``pack`` made bytes of."""
        return cls(*json.loads(packed))


def plain_header(method: str, materialize: bool, views: bool) -> Header:
    """Return the header of a call that splits no rows: it has nothing but the method's name."""
    return Header(method, -1, 0, materialize, "", views)
