"""Why a pool does not fit, from what was asked and what each node has."""

from __future__ import annotations

from core.cluster import ReserveRequest
from core.cluster.shortage import NodeRoom, Reservation, Shortage, explain_shortage


def node(name: str, **total: float) -> NodeRoom:
    """A node whose address is its name."""
    return NodeRoom(name, name, total)


def asked(*processes: int, **bundle: float) -> ReserveRequest:
    """A pool of ``processes`` per node."""
    return ReserveRequest("rollout", processes, bundle)


def short(request: ReserveRequest, rooms: list[NodeRoom], held: list[Reservation] | None = None) -> Shortage:
    """Explain a request that does not fit."""
    found = explain_shortage(request, rooms, held or [])
    assert found is not None
    return found


def test_a_pool_that_fits_has_no_shortage() -> None:
    assert explain_shortage(asked(4, CPU=2, GPU=1), [node("a", CPU=8, GPU=4)], []) is None
    assert explain_shortage(asked(4, 2, GPU=1), [node("a", GPU=2), node("b", GPU=4)], []) is None


def test_the_message_has_what_is_needed_what_there_is_and_the_bundle() -> None:
    found = short(asked(4, CPU=10), [node("a", CPU=16)])
    text = str(found.error)
    assert "4 bundles of 10 CPUs need 40 CPUs, 16 CPUs available" in text
    assert "room for 1 of these bundles" in text
    assert found.hopeless
    assert found.error.hopeless
    assert found.error.needed == (("CPU", 40),)
    assert found.error.available == (("CPU", 16),)
    assert (found.error.pool, found.error.n_bundles, found.error.bundle) == ("rollout", 4, (("CPU", 10),))


def test_a_total_that_would_do_does_not_when_no_single_node_has_it() -> None:
    # fault 57: the manager compares cluster totals only, [8] on two nodes of four GPUs hangs
    found = short(asked(8, CPU=1, GPU=1), [node("a", CPU=64, GPU=4), node("b", CPU=64, GPU=4)])
    assert found.hopeless
    assert "8 GPUs available" in str(found.error)
    assert str(found.error).count("room for 4 of these bundles") == 2
    assert "the node with the most room takes 4" in str(found.error)


def test_too_few_cpus_count_though_there_are_gpus_enough() -> None:
    found = short(asked(4, CPU=10, GPU=1), [node("a", CPU=16, GPU=8)])
    assert "room for 1 of these bundles" in str(found.error)


def test_who_holds_the_rest_is_named_and_it_is_not_hopeless() -> None:
    held = [Reservation("a", "actor", {"GPU": 1.0})] * 3
    found = short(asked(4, GPU=1), [node("a", GPU=4)], held)
    assert not found.hopeless
    assert not found.error.hopeless
    assert "1 GPU free, room for 1 of these bundles; held by actor (3 bundles)" in str(found.error)
    assert "1 GPU available of 4 GPUs" in str(found.error)
    assert "close another pool" in str(found.error)


def test_reservations_on_other_nodes_do_not_count() -> None:
    held = [Reservation("b", "actor", {"GPU": 4.0})]
    assert explain_shortage(asked(4, GPU=1), [node("a", GPU=4), node("b", GPU=4)], held) is None


def test_unequal_groups_are_placed_where_they_fit_most_tightly() -> None:
    rooms = [node("a", GPU=4), node("b", GPU=2)]
    assert explain_shortage(asked(2, 4, GPU=1), rooms, []) is None
    assert explain_shortage(asked(3, 3, GPU=1), rooms, []) is not None


def test_a_pinch_of_a_resource_that_no_node_has_is_named() -> None:
    found = short(asked(1, CPU=1, A100=0.0001), [node("a", CPU=8)])
    assert "0 A100" in str(found.error)
    assert found.hopeless


def test_fractions_do_not_lose_a_bundle_to_rounding() -> None:
    assert explain_shortage(asked(10, CPU=0.1), [node("a", CPU=1.0)], []) is None


def test_without_any_node_the_message_still_says_what_is_missing() -> None:
    found = short(asked(1, CPU=1), [])
    assert "0 CPUs available" in str(found.error)
