"""Which rows go to which rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.data.rows import padded_indices, row_ids
from core.data.shares import Receipt, Share, Uneven, plan_shares
from core.errors import UnevenSplitError

counts = st.integers(0, 200)
parts = st.integers(1, 40)


def sizes(shares: tuple[Share, ...]) -> list[int]:
    """Return the sizes of shares."""
    return [share.size for share in shares]


# Case H3 of the field (verl#3933).
@pytest.mark.parametrize(("n_rows", "n_parts", "expected"), [(124, 15, [9] * 4 + [8] * 11), (5, 4, [2, 1, 1, 1])])
def test_h3_an_uneven_split_is_balanced(n_rows: int, n_parts: int, expected: list[int]) -> None:
    shares = plan_shares(n_rows, n_parts, Uneven.SPLIT)
    assert sizes(shares) == expected
    assert [row for share in shares for row in range(share.start, share.stop)] == list(range(n_rows))


# Case H4 of the field (verl#149).
def test_h4_fewer_rows_than_ranks_give_each_rank_one_row() -> None:
    shares = plan_shares(3, 8, Uneven.PAD)
    assert sizes(shares) == [1] * 8
    assert [share.n_padding for share in shares] == [0, 0, 0, 1, 1, 1, 1, 1]


@given(n_rows=counts, n_parts=parts, uneven=st.sampled_from([Uneven.PAD, Uneven.SPLIT]))
def test_every_row_goes_to_one_rank_in_order(n_rows: int, n_parts: int, uneven: Uneven) -> None:
    shares = plan_shares(n_rows, n_parts, uneven)
    assert len(shares) == n_parts
    assert [row for share in shares for row in range(share.start, share.stop)] == list(range(n_rows))


@given(n_rows=counts, n_parts=parts)
def test_split_shares_differ_by_one_row_at_most_and_hold_no_padding(n_rows: int, n_parts: int) -> None:
    shares = plan_shares(n_rows, n_parts, Uneven.SPLIT)
    assert max(sizes(shares)) - min(sizes(shares)) <= 1
    assert not any(share.n_padding for share in shares)


@given(n_rows=counts, n_parts=parts)
def test_padded_shares_are_equal_and_as_small_as_can_be_with_one_mixed_share_at_most(n_rows: int, n_parts: int) -> None:
    shares = plan_shares(n_rows, n_parts, Uneven.PAD)
    assert set(sizes(shares)) == {-(-n_rows // n_parts)}
    assert sum(bool(share.n_real and share.n_padding) for share in shares) <= 1


@given(n_rows=st.integers(1, 200), n_parts=parts)
def test_padding_repeats_rows_of_the_batch_and_real_rows_keep_their_numbers(n_rows: int, n_parts: int) -> None:
    for share in plan_shares(n_rows, n_parts, Uneven.PAD):
        indices, ids = padded_indices(share, n_rows), row_ids(share)
        assert len(indices) == len(ids) == share.size
        assert ids[: share.n_real].tolist() == indices[: share.n_real].tolist()
        assert set(ids[share.n_real :].tolist()) <= {-1}
        assert all(0 <= row < n_rows for row in indices)
        if share.n_real:
            assert set(indices.tolist()) == set(range(share.start, share.stop))


@given(n_rows=counts, n_parts=parts)
def test_rows_that_do_not_divide_are_an_error_unless_said_otherwise(n_rows: int, n_parts: int) -> None:
    if n_rows % n_parts == 0:
        assert set(sizes(plan_shares(n_rows, n_parts, Uneven.ERROR))) == {n_rows // n_parts}
        return
    with pytest.raises(UnevenSplitError) as caught:
        plan_shares(n_rows, n_parts, Uneven.ERROR, "prompts of Rollout.generate")
    assert (caught.value.n_rows, caught.value.n_parts) == (n_rows, n_parts)
    assert f"cannot split {n_rows} rows of prompts of Rollout.generate into {n_parts} equal shares" in str(caught.value)


@given(
    numbers=st.tuples(*[st.integers(-1, 2**62)] * 6),
    keep=st.none() | st.lists(st.integers(0, 10**6), max_size=5).map(tuple),
    note=st.just("") | st.text(),
)
def test_a_receipt_survives_its_trip_as_bytes(
    numbers: tuple[int, int, int, int, int, int], keep: tuple[int, ...] | None, note: str
) -> None:
    receipt = Receipt(*numbers, keep, note)
    assert Receipt.unpack(receipt.pack()) == receipt
    assert receipt.n_kept == (receipt.rows_out if keep is None else len(keep))
