"""Which Ray a driver asks for, by ``core.init(address=...)`` and RAY_ADDRESS."""

from __future__ import annotations

import pytest

from core.cluster.ray_address import cannot_be_joined, wanted_address
from core.errors import ClusterUnreachableError


# Case 17 of the field (ray_address_local).
@pytest.mark.parametrize(
    ("option", "variable", "wanted"),
    [
        (None, None, "local"),
        (None, "", "local"),
        (None, "  ", "local"),
        (None, "local", "local"),
        (None, "auto", "auto"),
        (None, " 10.0.0.1:6379\n", "10.0.0.1:6379"),
        ("local", "10.0.0.1:6379", "local"),
        ("auto", None, "auto"),
        ("auto", "local", "local"),
        ("auto", "10.0.0.1:6379", "10.0.0.1:6379"),
        ("", "10.0.0.1:6379", "10.0.0.1:6379"),
    ],
)
def test_ray_address_local_and_its_kin_are_what_ray_takes_them_for(
    option: str | None, variable: str | None, wanted: str
) -> None:
    assert wanted_address(option, {} if variable is None else {"RAY_ADDRESS": variable}) == wanted


@pytest.mark.parametrize(
    ("option", "variable", "said"),
    [
        (None, "ray://head:10001", r"RAY_ADDRESS is ray://head:10001: .*Ray Client.*RAY_ADDRESS=auto.*ray job submit"),
        ("ray://head:10001", None, r"core.init\(address=...\) is ray://head:10001"),
        (None, "http://head:8265", r"RAY_ADDRESS is http://head:8265, the address of Ray's dashboard.*ray job submit"),
    ],
)
def test_an_address_where_no_driver_can_run_is_refused_with_the_way_out(
    option: str | None, variable: str | None, said: str
) -> None:
    with pytest.raises(ClusterUnreachableError, match=said):
        wanted_address(option, {} if variable is None else {"RAY_ADDRESS": variable})


def test_a_cluster_that_cannot_be_joined_is_named_with_the_reason_and_the_way_out() -> None:
    error = cannot_be_joined("10.0.0.1:6379", ConnectionError("no answer\nand a long story"))
    assert error.address == "10.0.0.1:6379"
    assert "10.0.0.1:6379 cannot be joined: no answer; " in str(error)
    assert "RAY_ADDRESS=local" in str(error)
    assert "on this machine" in str(cannot_be_joined("auto", ConnectionError("none")))
