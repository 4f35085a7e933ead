"""Controls a running driver from another program, over REST::

    client = Client("http://127.0.0.1:8080", token)
    operation = client.resize("gpus", [2])
    client.wait(operation, timeout_s=120)

``client`` holds ``Client``, ``models`` its values and errors, ``transport`` the HTTP below.
"""

from app.client.client import Client
from app.client.models import (
    BusyError,
    ClientError,
    ConflictError,
    InvalidRequestError,
    NotAuthorisedError,
    NotFoundError,
    Operation,
    OperationFailedError,
    RefusedError,
    StaleGenerationError,
    StillRunningError,
    UnreachableError,
)
from web.rows import Pool

__all__ = [
    "BusyError",
    "Client",
    "ClientError",
    "ConflictError",
    "InvalidRequestError",
    "NotAuthorisedError",
    "NotFoundError",
    "Operation",
    "OperationFailedError",
    "Pool",
    "RefusedError",
    "StaleGenerationError",
    "StillRunningError",
    "UnreachableError",
]
