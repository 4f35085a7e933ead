"""The example of a dispatch mode of one's own, and what such a mode has in common with the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dispatch_mode import PAIRS, Model, main, split_by_pairs

from core import (
    Arguments,
    CallOptions,
    DataProto,
    DataProtoFuture,
    Dispatch,
    Dispatched,
    Execute,
    ModeRule,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    get_predefined_dispatch_fn,
    register,
    register_dispatch_mode,
    send_to_all,
)
from core.errors import RegistrationError, UnevenSplitError
from core.testing import RecordingObserver, local_controller


def to_all(group: Any, arguments: Arguments, call: CallOptions) -> Dispatched:
    """Send every rank the same."""
    del call
    return send_to_all(group.world_size, arguments)


def best(group: Any, results: list[int]) -> int:
    """Return the largest result."""
    del group
    return max(results)


register_dispatch_mode("BEST_OF", rule=ModeRule(to_all, best))


class More(Model):
    """Methods in modes of a user's own."""

    @register(dispatch_mode=PAIRS)
    def strict(self, batch: DataProto) -> DataProto:
        """Return every row twice, with the row's value."""
        return batch.repeat(2)

    @register(dispatch_mode=PAIRS, blocking=False, uneven="pad")
    def reversed_rows(self, batch: DataProto) -> DataProto:
        """Return the rows in reverse order."""
        return batch[list(range(len(batch)))[::-1]]

    @register(dispatch_mode=get_predefined_dispatch_fn(PAIRS), uneven="pad")
    def by_functions(self, batch: DataProto) -> DataProto:
        """Return the rows this rank got."""
        return batch

    @register(dispatch_mode=Dispatch.BEST_OF)
    def offer(self, value: int) -> int:
        """Return a number of this rank's own."""
        return value + self.rank

    @register(dispatch_mode=Dispatch.BEST_OF, execute_mode=Execute.RANK_ZERO)
    def offer_zero(self, value: int) -> list[int]:
        """Return a list from rank 0."""
        return [value, value + 1]


@pytest.fixture
def four() -> Iterator[tuple[RayWorkerGroup, RecordingObserver]]:
    """A group of two pairs."""
    with local_controller() as (_, seen):
        yield RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(More), name_prefix="more"), seen


def rows(n_rows: int) -> DataProto:
    """Make a batch of numbered rows."""
    return DataProto.from_dict({"x": torch.arange(float(n_rows))})


def test_the_example_runs_and_the_first_rank_of_each_pair_answers() -> None:
    with local_controller():
        assert main() == [[0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 0.0, 0.0, 2.0, 2.0]]


def test_padding_of_a_users_mode_is_removed_and_recorded(four: tuple[RayWorkerGroup, RecordingObserver]) -> None:
    group, seen = four
    assert group.score(rows(5)).batch["score"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    ended = seen.last_call()
    assert (ended.shard_sizes, ended.padding_rows, ended.rows, ended.rows_out) == ((3, 3, 3, 3), 1, 5, 5)


def test_rows_that_a_users_mode_cannot_split_are_an_error_that_names_the_method(
    four: tuple[RayWorkerGroup, RecordingObserver],
) -> None:
    with pytest.raises(UnevenSplitError, match=r"5 rows of argument #1 of more\.strict into 2 equal"):
        four[0].strict(rows(5))
    assert four[0].strict(rows(2)).batch["x"].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_a_future_of_a_users_mode_is_passed_on_with_its_padding_known(
    four: tuple[RayWorkerGroup, RecordingObserver],
) -> None:
    later = four[0].reversed_rows(rows(5))
    assert isinstance(later, DataProtoFuture)
    assert four[0].score(later).batch["score"].tolist() == [4.0, 2.0, 0.0, 8.0, 6.0]
    assert later.get().batch["x"].tolist() == [2.0, 1.0, 0.0, 4.0, 3.0]


def test_the_functions_of_a_users_mode_stand_for_its_rule(four: tuple[RayWorkerGroup, RecordingObserver]) -> None:
    group, seen = four
    assert group.by_functions(rows(5)).batch["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert seen.last_call().padding_rows == 1
    functions = get_predefined_dispatch_fn(PAIRS)
    (shards,), _ = functions["dispatch_fn"](group, rows(4))
    assert [shard.batch["x"].tolist() for shard in shards] == [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]
    assert functions["collect_fn"](group, shards[::2]).batch["x"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_users_rule_collects_what_it_does_not_join(four: tuple[RayWorkerGroup, RecordingObserver]) -> None:
    assert four[0].offer(5) == 8
    assert four[0].offer_zero(5) == 6


def test_a_row_mode_of_a_user_is_refused_with_rank_zero_execution() -> None:
    with pytest.raises(RegistrationError, match="all but the first would be lost"):
        register(dispatch_mode=PAIRS, execute_mode=Execute.RANK_ZERO)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split": None}, "split of a ModeRule must be callable"),
        ({"split": to_all, "collect": 3}, "collect of a ModeRule must be callable"),
        ({"split": to_all, "joins_rows": True}, "needs rows=True"),
        ({"split": to_all, "collect": best, "rows": True, "joins_rows": True}, "leave collect out"),
    ],
)
def test_a_rule_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        ModeRule(**fields)


def test_a_mode_has_one_definition() -> None:
    with pytest.raises(RegistrationError, match="exists already"):
        register_dispatch_mode("PAIRS", rule=ModeRule(split_by_pairs))
    with pytest.raises(RegistrationError, match="a rule and functions"):
        register_dispatch_mode("BOTH", best, best, rule=ModeRule(to_all))  # type: ignore[call-overload]
    with pytest.raises(RegistrationError, match="must be a ModeRule"):
        Dispatch.register("NEITHER", print)  # type: ignore[arg-type]
    assert not {"BOTH", "NEITHER"} & set(Dispatch.members)


def test_a_mode_that_was_removed_can_be_defined_again_by_functions() -> None:
    Dispatch.register("GONE_RULE", ModeRule(to_all, best))
    Dispatch.remove("GONE_RULE")
    assert "GONE_RULE" not in Dispatch.members
    functions = get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)
    register_dispatch_mode("GONE_RULE", **functions)
    assert get_predefined_dispatch_fn(Dispatch.GONE_RULE) == functions
    Dispatch.remove("GONE_RULE")
