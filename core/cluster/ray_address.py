"""Which Ray a driver asks for: one of its own, or the cluster at an address."""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import ClusterUnreachableError

LOCAL = "local"
_OPTION = "core.init(address=...)"


def wanted_address(option: object, environ: Mapping[str, str]) -> str:
    """Return the address to join, or "local" for a Ray that is started on this machine.

    ``option`` is ``core.init(address=...)``, which comes before RAY_ADDRESS. An empty one, and none, stand for "local";
    "auto" is Ray's word for a cluster whose node this machine is.

    Raises:
        ClusterUnreachableError: It is an address of Ray Client or of Ray's jobs, where no driver can run.
    """
    variable = environ.get("RAY_ADDRESS", "").strip()
    # Ray takes "auto" for RAY_ADDRESS where that is set.
    source, address = ("RAY_ADDRESS", variable) if not option or (option == "auto" and variable) else (_OPTION, option)
    wanted = str(address).strip()
    scheme, found, _ = wanted.partition("://")
    if found and scheme.lower() in {"http", "https"}:
        raise ClusterUnreachableError(
            f"{source} is {wanted}, the address of Ray's dashboard and jobs, not of a cluster; send the driver there "
            f"with `ray job submit --address {wanted} -- python driver.py`, or take it out",
            address=wanted,
        )
    if found:
        raise ClusterUnreachableError(
            f"{source} is {wanted}: Podium does not run through Ray Client, its driver needs the shared memory of a "
            f"node; run the driver on a node of that cluster with RAY_ADDRESS=auto, or submit it with `ray job submit`",
            address=wanted,
        )
    return wanted or LOCAL


def cannot_be_joined(address: str, error: Exception) -> ClusterUnreachableError:
    """Return the error for a cluster that does not answer, or that refuses this driver."""
    reason = str(error.__cause__ or error).strip().partition("\n")[0] or type(error).__name__
    where = 'a Ray cluster on this machine (address "auto")' if address == "auto" else f"the Ray cluster at {address}"
    return ClusterUnreachableError(
        f"{where} cannot be joined: {reason}; `ray status --address {address}` shows whether it runs, and a driver "
        f"must be on one of its nodes; with RAY_ADDRESS=local Podium starts Ray here",
        address=address,
    )


def cannot_be_started(error: OSError) -> ClusterUnreachableError | None:
    """Return the error for a Ray whose sockets' paths are too long, None for any other reason."""
    if "AF_UNIX path length" not in str(error):
        return None
    return ClusterUnreachableError(
        f"Ray cannot be started here: its temporary folder is too deep ({error}); "
        "set RAY_TMPDIR=/tmp, or pass a short `_temp_dir` to core.init",
        address=LOCAL,
    )
