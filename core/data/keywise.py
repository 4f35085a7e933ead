"""What a batch does with its keys: choose, take out, rename, unite with those of another batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

from tensordict import TensorDict

from core.data.build import check_keys
from core.data.columns import Columns
from core.data.merge import check_union, union_columns
from core.data.table import Table
from core.errors import UsageError


class KeyMethods(Table):
    """The methods of DataProto that are about keys."""

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """Return only these keys, None meaning all of a kind; ``deepcopy`` copies the values too.

        Raises:
            MissingKeyError: A key that is not there.
        """
        chosen = self._pick(
            self._batch_keys() if batch_keys is None else batch_keys,
            list(self.non_tensor_batch or {}) if non_tensor_batch_keys is None else non_tensor_batch_keys,
            list(self.meta_info) if meta_info_keys is None else meta_info_keys,
        )
        return copy.deepcopy(chosen) if deepcopy else chosen

    def _pick(self, batch_keys: Sequence[str], array_keys: Sequence[str], meta_keys: Sequence[str]) -> Self:
        """Return these keys; a batch that keeps no column keeps its number of rows in an empty TensorDict."""
        check_keys(batch_keys, self._batch_keys(), "batch")
        check_keys(array_keys, list(self.non_tensor_batch or {}), "non_tensor_batch")
        check_keys(meta_keys, list(self.meta_info), "meta_info")
        batch = None
        if self.batch is not None:
            picked = {key: self.batch.get(key) for key in batch_keys}
            batch = TensorDict(picked, batch_size=self.batch.batch_size, device=self.batch.device).copy()
        elif not array_keys and len(self):
            batch = TensorDict({}, batch_size=[len(self)])
        arrays = {key: self.non_tensor_batch[key] for key in array_keys}
        return self._derive(Columns(batch, arrays, self.row_ids), {key: self.meta_info[key] for key in meta_keys})

    def pop(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> Self:
        """Remove these keys from this batch and return them as a batch of as many rows; None means none.

        Raises:
            MissingKeyError: A key that is not there; nothing was removed.
        """
        popped = self._pick(batch_keys or (), non_tensor_batch_keys or (), meta_info_keys or ())
        if self.batch is not None and batch_keys:
            kept = {key: column for key, column in self.batch.items() if key not in batch_keys}
            self.batch = TensorDict(kept, batch_size=self.batch.batch_size, device=self.batch.device)
        arrays = self.non_tensor_batch or {}
        self.non_tensor_batch = {
            key: array for key, array in arrays.items() if key not in (non_tensor_batch_keys or ())
        }
        self.meta_info = {key: value for key, value in self.meta_info.items() if key not in (meta_info_keys or ())}
        return popped

    def rename(self, old_keys: str | Sequence[str] | None = None, new_keys: str | Sequence[str] | None = None) -> Self:
        """Rename columns in place and return this batch; a swap of two names works.

        Raises:
            TypeError: Names are neither text nor lists of it.
            UsageError: Unequal numbers of names, or a name that another column has (both are ValueErrors).
            MissingKeyError: A column that is not there.
        """
        if old_keys is None and new_keys is None:
            return self
        old, new = _names(old_keys), _names(new_keys)
        if len(old) != len(new):
            raise UsageError(f"{len(old)} names cannot be replaced by {len(new)}: {old} and {new}")
        check_keys(old, self._keys(), "the batch")
        renamed = dict(zip(old, new, strict=True))
        names = [renamed.get(key, key) for key in self._keys()]
        if len(set(names)) != len(names):
            raise UsageError(f"renaming {old} to {new} would give two columns one name; the batch has {self._keys()}")
        if self.batch is not None:
            columns = {renamed.get(key, key): column for key, column in self.batch.items()}
            self.batch = TensorDict(columns, batch_size=self.batch.batch_size, device=self.batch.device)
        self.non_tensor_batch = {renamed.get(key, key): array for key, array in (self.non_tensor_batch or {}).items()}
        return self

    def union(self, other: Table) -> Self:
        """Take over the keys of ``other`` in place and return this batch; keys of both must hold equal values.

        Raises:
            BatchError: Different numbers of rows.
            MergeConflictError: A key with another value; nothing was changed.
        """
        check_union(self._columns(), other._columns(), self.meta_info, other.meta_info)
        self._become(union_columns(self._columns(), other._columns()))
        self.meta_info = {**other.meta_info, **self.meta_info}
        return self


def _names(keys: str | Sequence[str] | None) -> list[str]:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, (list, tuple)) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"rename takes a name or a list of names, not {type(keys).__name__}")
    return list(keys)
