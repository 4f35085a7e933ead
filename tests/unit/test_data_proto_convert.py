"""A batch as a TensorDict, as a file, and as text."""

from __future__ import annotations

import os
import pickle
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from tensordict import NonTensorData, NonTensorStack, TensorDict

from core.data import DataProto
from core.errors import BatchError


def rich() -> DataProto:
    return DataProto.from_dict(
        {
            "obs": torch.arange(6.0).reshape(3, 2),
            "j": torch.nested.nested_tensor([torch.ones(n) for n in (1, 2, 3)], layout=torch.jagged),
        },
        {
            "labels": ["a", "b", "c"],
            "rewards": [[], [0.5, 0.8], [0.1]],
            "extra": [{"index": 1}, {}, {"deep": [{"x": 1}]}],
            "dialogue": [[{"role": "user"}], [], [{"role": "a"}, {"role": "b"}]],
            "square": [[1, 2], [3, 4], [5, 6]],
            "ints": np.array([1, 2, 3], dtype=np.int32),
            "floats": np.array([[1.5, np.nan]] * 3, dtype=np.float32),
            "text": np.array(["a", "bcd", ""]),
        },
        {"name": "abdce", "config": {"lr": 0.1}, "list": [1, 2], "tensor": torch.ones(5), "none": None},
    )


def test_a_batch_goes_to_a_tensordict_and_back_unchanged() -> None:
    batch = rich()
    out = batch.to_tensordict()
    assert isinstance(out, TensorDict)
    assert out.batch_size == torch.Size([3])
    assert torch.equal(out["obs"], torch.arange(6.0).reshape(3, 2))
    assert out["labels"] == ["a", "b", "c"]
    assert out["name"] == "abdce"
    assert list(out["rewards"][1]) == [0.5, 0.8]
    assert dict(out["extra"][0]) == {"index": 1}
    assert [dict(turn) for turn in out["dialogue"][2]] == [{"role": "a"}, {"role": "b"}]
    again = DataProto.from_tensordict(out)
    assert again == batch
    assert len(again) == 3
    assert {key: array.dtype for key, array in again.non_tensor_batch.items()} == {
        key: array.dtype for key, array in batch.non_tensor_batch.items()
    }


@pytest.mark.parametrize(
    "batch",
    [
        DataProto(),
        DataProto.from_dict(non_tensors={"a": ["x", "y"]}, meta_info={"m": 1}),
        DataProto.from_dict({"x": torch.zeros(0, 2)}),
        DataProto(TensorDict({}, batch_size=[4]), meta_info={"m": "x"}),
    ],
    ids=["empty", "arrays only", "no rows", "no keys"],
)
def test_batches_without_rows_tensors_or_keys_become_tensordicts_too(batch: DataProto) -> None:
    out = batch.to_tensordict()
    assert out.batch_size == (len(batch),)
    again = DataProto.from_tensordict(out)
    assert len(again) == len(batch)
    assert again.meta_info == batch.meta_info
    assert again.non_tensor_batch.keys() == batch.non_tensor_batch.keys()


@pytest.mark.skipif(
    Version(version("tensordict")) < Version("0.15"), reason="a TensorDict takes no empty stack before 0.15"
)
def test_arrays_without_rows_become_stacks_without_rows() -> None:
    out = rich()[:0].to_tensordict()
    assert out.batch_size == (0,)
    again = DataProto.from_tensordict(out)
    assert len(again) == 0
    assert again.non_tensor_batch.keys() == rich().non_tensor_batch.keys()


def test_what_a_foreign_tensordict_holds_is_sorted_by_kind() -> None:
    foreign = TensorDict(
        {
            "obs": torch.ones(2, 3),
            "labels": NonTensorStack("a", "b"),
            "name": NonTensorData("x", batch_size=[2]),
            "inner": TensorDict({"y": torch.ones(2)}, batch_size=[2]),
        },
        batch_size=[2],
    )
    batch = DataProto.from_tensordict(foreign, meta_info={"more": 1})
    assert batch.batch is not None
    assert set(batch.batch.keys()) == {"obs", "inner"}
    assert batch.non_tensor_batch["labels"].tolist() == ["a", "b"]
    assert batch.non_tensor_batch["labels"].dtype == object
    assert batch.meta_info == {"name": "x", "more": 1}
    assert DataProto.from_tensordict(TensorDict({"x": torch.ones(2, 3)}, [2, 3])).batch is not None


def test_conversions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BatchError, match="'name' names two things"):
        DataProto.from_dict({"name": torch.ones(1)}, meta_info={"name": "x"}).to_tensordict()
    with pytest.raises(BatchError, match="one batch dimension"):
        DataProto.from_tensordict(TensorDict({}, []))
    with pytest.raises(AssertionError, match="one batch dimension, not 2"):
        DataProto.from_tensordict(TensorDict({}, [2, 3]), num_batch_dims=2)
    with pytest.raises(BatchError, match="not a dict"):
        DataProto.from_tensordict({"a": torch.ones(2)})  # type: ignore[arg-type]


def test_a_batch_is_written_to_disk_and_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "batch.pkl")
    batch = rich()
    batch.save_to_disk(path)
    again = DataProto.load_from_disk(path)
    assert again == batch
    assert again.batch is not None
    again.batch["obs"] += 1
    assert os.listdir(tmp_path) == ["batch.pkl"]
    batch[:1].save_to_disk(path)
    assert DataProto.load_from_disk(path) == batch[:1]
    joined = DataProto.concat([DataProto(meta_info={"t": 1}), DataProto(meta_info={"t": 2})])
    joined.save_to_disk(path)
    assert DataProto.load_from_disk(path).meta_info["t"].parts == (0, 1)


class Evil:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_a_file_that_would_run_code_is_not_read_unless_trusted(tmp_path: Path) -> None:
    path = str(tmp_path / "batch.pkl")
    DataProto(meta_info={"x": Path("/a")}).save_to_disk(path)
    with pytest.raises(BatchError, match=r"pathlib.*trusted=True"):
        DataProto.load_from_disk(path)
    assert DataProto.load_from_disk(path, trusted=True).meta_info == {"x": Path("/a")}
    DataProto(meta_info={"x": Evil()}).save_to_disk(path)
    with pytest.raises(BatchError, match=r"holds a posix.system"):
        DataProto.load_from_disk(path)


def test_other_files_are_refused_and_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "batch.pkl"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(BatchError, match="was not written by"):
        DataProto.load_from_disk(str(path))
    rich().save_to_disk(str(path))
    whole = path.read_bytes()
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        DataProto(meta_info={"f": lambda: 1}).save_to_disk(str(path))
    assert path.read_bytes() == whole
    assert os.listdir(tmp_path) == ["batch.pkl"]
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BatchError, match="damaged"):
        DataProto.load_from_disk(str(path))


def test_the_text_about_a_batch_names_every_key_with_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    text = rich().get_data_info()
    for expected in (
        "obs: Tensor shape=(3, 2) dtype=torch.float32 device=cpu",
        "j: Tensor shape=3 x ragged",
        "ints: ndarray shape=(3,) dtype=int32",
        "config: dict{lr: float}",
        "list: list[int]",
        "tensor: Tensor",
    ):
        assert expected in text
    assert "labels" in DataProto.from_dict(non_tensors={"labels": [1]}).get_data_info()
    assert DataProto().get_data_info()
    rich().print_size("before")
    DataProto().print_size()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("before")
    assert "GB" in second
    assert "obs" in repr(rich())
