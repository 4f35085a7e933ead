"""``podium run --verl`` replaces verl's controller and batch; a package with verl's folders stands for verl here."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

import core
from app.verl.names import CONTROLLER, NAMES, PROTOCOL
from app.verl.processes import runtime_env_with_replacement, start_worker_process, use_core_for_verl
from core.data.rows import join, take_first_without_rows
from core.dispatch import MAGIC_ATTR
from core.errors import ShareError, UsageError

_BRIDGE = """
from functools import wraps

def tqbridge(dispatch_mode=None):
    def decorate(method):
        @wraps(method)
        def fetched(*args, **kwargs):
            return "fetched", method(*args, **kwargs)
        return fetched
    return decorate
"""


@pytest.fixture
def verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with verl's folders, whose controller cannot be imported, first on the path."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "verl"
    texts = {
        "__init__.py": "from .protocol import DataProto\n",
        "version/version": "0.9.1\n",
        "protocol.py": "raise RuntimeError('verl has its own batch')\n",
        "single_controller/__init__.py": "raise RuntimeError('verl has its own controller')\n",
        "utils/__init__.py": "",
        "utils/transferqueue_utils.py": _BRIDGE,
        "trainer.py": "from verl.single_controller.ray import RayWorkerGroup\nfrom verl import DataProto\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for variable in ("RAY_RUNTIME_ENV_HOOK", "PODIUM_EARLIER_RUNTIME_ENV_HOOK"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setattr(importlib.import_module("core.dispatch.register"), "_wrappers", [])
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    yield folder
    take_first_without_rows()()
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


def test_every_name_in_the_table_is_one_of_core() -> None:
    for module, names in NAMES.items():
        assert [name for name in names if not hasattr(core, name)] == [], module


def test_a_trainer_gets_our_group_and_our_batch_and_the_rest_of_verl(verl: Path) -> None:
    assert use_core_for_verl() == "0.9.1"
    trainer = importlib.import_module("verl.trainer")
    assert trainer.RayWorkerGroup is core.RayWorkerGroup
    assert trainer.DataProto is core.DataProto
    assert trainer.__file__ == str(verl / "trainer.py")
    for module, names in NAMES.items():
        replaced = importlib.import_module(module)
        assert [getattr(replaced, name) for name in names] == [getattr(core, name) for name in names]
    dispatch = importlib.import_module("verl.single_controller.base.decorator").Dispatch.ONE_TO_ALL
    assert pickle.loads(pickle.dumps(dispatch)) == core.Dispatch.ONE_TO_ALL


def test_registered_methods_are_wrapped_in_verls_bridge(verl: Path) -> None:
    use_core_for_verl()
    decorator = importlib.import_module("verl.single_controller.base.decorator")

    class Actor:
        @decorator.register(dispatch_mode=decorator.Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
        def update(self) -> str:
            return "updated"

    assert Actor().update() == ("fetched", "updated")
    assert hasattr(Actor.update, MAGIC_ATTR)


def test_of_parts_without_rows_the_first_counts_as_in_verl(verl: Path) -> None:
    parts = [TensorDict({"loss": torch.tensor(float(rank))}, []) for rank in range(2)]
    assert join(parts, "train") == parts
    use_core_for_verl()
    importlib.import_module("verl")
    assert join(parts, "train") is parts[0]
    with pytest.raises(ShareError, match="a batch with rows on some ranks only"):
        join([parts[0], TensorDict({"loss": torch.zeros(2)}, [2])], "train")


def test_names_that_are_not_there_say_who_replaced_them(verl: Path) -> None:
    use_core_for_verl()
    base = importlib.import_module("verl.single_controller.base")
    with pytest.raises(AttributeError, match=r"'verl.single_controller.base' has no attribute 'Nothing'.*--verl"):
        _ = base.Nothing
    assert not hasattr(base, "Nothing")
    with pytest.raises(ImportError, match=r"MegatronWorker, which verl had before 0.6: derive from core.Worker"):
        _ = base.MegatronWorker
    with pytest.raises(ModuleNotFoundError, match=r"'verl.single_controller.base.megatron'.*replaced by Podium"):
        importlib.import_module("verl.single_controller.base.megatron")


def test_verl_that_is_missing_or_unknown_is_refused(verl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (verl / "version/version").write_text("0.4.0", encoding="utf-8")
    with pytest.raises(UsageError, match=r"names of verl 0\.9, and .* is verl 0\.4\.0; install verl 0\.9"):
        use_core_for_verl()
    (verl / "version/version").unlink()
    with pytest.raises(UsageError, match="cannot read the version of verl"):
        use_core_for_verl()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "verl").is_dir()])
    with pytest.raises(UsageError, match=r"has none; install verl and podium into one environment"):
        use_core_for_verl()
    assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("app.verl")]


@pytest.mark.parametrize("early", [CONTROLLER, PROTOCOL])
def test_what_came_first_is_named_and_nothing_is_replaced(
    verl: Path, monkeypatch: pytest.MonkeyPatch, early: str
) -> None:
    monkeypatch.setitem(sys.modules, early, SimpleNamespace())
    with pytest.raises(UsageError, match=f"comes too late: {early} of verl is imported already"):
        use_core_for_verl()
    monkeypatch.delitem(sys.modules, early)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(UsageError, match="comes too late: Ray is initialized already"):
        use_core_for_verl()
    assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("app.verl")]


calls: list[str] = []


def theirs() -> None:
    """A hook of a program."""
    calls.append("theirs")


def earlier(runtime_env: dict[str, object] | None) -> dict[str, object]:
    """A hook for runtime environments that was set before."""
    return {**(runtime_env or {}), "env_vars": {"EARLIER": "1"}}


def test_the_setup_hook_of_the_job_is_ours_and_then_the_programs(verl: Path) -> None:
    calls.clear()
    plain = runtime_env_with_replacement(None)
    assert plain == {"worker_process_setup_hook": "app.verl.processes.start_worker_process"}
    given = {"worker_process_setup_hook": theirs, "env_vars": {"A": "1"}}
    both = runtime_env_with_replacement(given)
    assert given["worker_process_setup_hook"] is theirs
    assert both["env_vars"] == {"A": "1"}
    both["worker_process_setup_hook"]()
    named = runtime_env_with_replacement({"worker_process_setup_hook": f"{__name__}.theirs"})
    sys.modules.setdefault(__name__, sys.modules[theirs.__module__])
    named["worker_process_setup_hook"]()
    assert calls == ["theirs", "theirs"]
    assert importlib.import_module("verl").DataProto is core.DataProto


def test_a_hook_for_runtime_environments_that_was_set_before_is_kept(
    verl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", f"{__name__}.earlier")
    use_core_for_verl()
    use_core_for_verl()
    wanted = runtime_env_with_replacement({})
    assert wanted["env_vars"] == {"EARLIER": "1"}
    assert wanted["worker_process_setup_hook"] == "app.verl.processes.start_worker_process"


def test_a_worker_process_that_has_verls_own_controller_already_is_refused(
    verl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, CONTROLLER, SimpleNamespace())
    with pytest.raises(UsageError, match="comes too late"):
        start_worker_process()
