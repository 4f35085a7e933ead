"""What a type checker sees of a typed group: right calls pass, a wrong argument is caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from core import DataProto, Dispatch, RayResourcePool, RayWorkerGroup, Worker, register
from core.testing import local_controller

_DRIVER = """
from core import DataProto, Dispatch, RayResourcePool, RayWorkerGroup, Worker, register

class Scaler(Worker):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def scale(self, batch: DataProto, twice: bool = False) -> DataProto:
        return batch

group = RayWorkerGroup.of(RayResourcePool([2]), Scaler, 3.0)
right: DataProto = group.scale(DataProto(), twice=True)
group.scale("not a batch")
RayWorkerGroup.of(RayResourcePool([2]), Scaler, "not a factor")
group.scael(DataProto())
"""
_CONFIGURATION = """
[mypy]
strict = true

[mypy-torch.*,tensordict.*,numpy.*,ray.*]
follow_imports = skip
"""


def test_mypy_catches_a_wrong_argument_of_a_typed_group(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(_DRIVER, encoding="utf-8")
    # Without torch's own types, which take a minute to read where there is no cache.
    configuration = tmp_path / "mypy.ini"
    configuration.write_text(_CONFIGURATION, encoding="utf-8")
    options = ["--no-error-summary", f"--config-file={configuration}", f"--cache-dir={os.devnull}"]
    command = [sys.executable, "-m", "mypy", *options, str(driver)]
    root = Path(__file__).parents[2]
    said = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False).stdout.splitlines()
    errors = [line.split("error: ", 1)[1] for line in said if "driver.py" in line and "error: " in line]
    assert len(errors) == 3, said
    assert '"scale" of "Scaler" has incompatible type "str"; expected "DataProto"' in errors[0]
    assert 'has incompatible type "str"; expected "float"' in errors[1]
    assert 'has no attribute "scael"' in errors[2]


class Shifter(Worker):
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def add(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict({"x": batch.batch["x"] + self.shift})


def test_a_typed_group_is_a_worker_group_all_the_same() -> None:
    with local_controller():
        group = RayWorkerGroup.of(RayResourcePool([2]), Shifter, 3.0)
        assert isinstance(group, RayWorkerGroup)
        assert group.add(DataProto.from_dict({"x": torch.arange(2.0)})).batch["x"].tolist() == [3, 4]
