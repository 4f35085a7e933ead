"""Runs a module of verl's on a Ray of this process with logical GPUs: ``verl_start.py MODULE [arguments]``.

verl's trainers call ``ray.init()`` themselves; the only thing that is changed here is what Ray is given.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

import ray

_init = ray.init


def _with_resources(*args: Any, **options: Any) -> Any:
    resources = {"address": "local", "num_cpus": 64, "num_gpus": 2, "include_dashboard": False}
    return _init(*args, **{**resources, "_temp_dir": os.environ["VERL_START_RAY_FOLDER"], **options})


ray.init = _with_resources
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
