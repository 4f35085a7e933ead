"""Reading a batch's tensors."""

from __future__ import annotations

from torch import Tensor

from core import DataProto
from core.errors import MissingKeyError


def column(batch: DataProto, name: str) -> Tensor:
    """Return ``batch.batch[name]``.

    Raises:
        MissingKeyError: The batch has no tensor of that name.
    """
    tensors = batch.batch
    if tensors is None or name not in tensors:
        available = () if tensors is None else tuple(map(str, tensors))
        raise MissingKeyError(f"the batch has no tensor {name!r}; it has {available}", key=name, available=available)
    tensor: Tensor = tensors[name]
    return tensor
