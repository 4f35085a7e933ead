"""verl's own SFT trainer, unmodified, by ``podium run --verl``: every loss is that of plain verl.

Needs verl 0.9.1 and Podium in an environment of their own, whose Python ``PODIUM_VERL`` names; see ``make verl-test``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

VERL = os.environ.get("PODIUM_VERL", "")
ROOT = Path(__file__).resolve().parents[2]
TRAINER = "verl.trainer.sft_trainer_ray"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not VERL, reason="needs an environment with verl: set PODIUM_VERL to its Python"),
]


def arguments(inputs: Path, out: Path, n_steps: int) -> list[str]:
    """Return the trainer's command line: two ranks, 8 conversations a step, a checkpoint at the end."""
    values = {
        "data.train_files": inputs / "sft.parquet",
        "data.train_batch_size": 8,
        "data.micro_batch_size_per_gpu": 4,
        "data.use_dynamic_bsz": False,
        "data.max_length": 64,
        "model.path": inputs / "model",
        "model.use_remove_padding": False,
        "+model.override_config.attn_implementation": "eager",
        "model.enable_gradient_checkpointing": False,
        "engine.strategy": "fsdp2",
        "engine.use_torch_compile": False,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 2,
        "trainer.total_training_steps": n_steps,
        "trainer.logger": "[console,file]",
        "trainer.default_local_dir": out / "checkpoints",
    }
    return [f"{name}={value}" for name, value in values.items()]


def train(command: list[str], inputs: Path, out: Path, n_steps: int) -> dict[int, tuple[float, float]]:
    """Run the trainer and return loss and gradient norm by step."""
    out.mkdir(exist_ok=True)
    metrics = out / f"metrics{n_steps}.jsonl"
    settings = {
        "PYTHONPATH": str(ROOT / "examples" / "verl_on_cpu"),
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "VERL_START_RAY_FOLDER": os.environ.get("RAY_TMPDIR", "/tmp/ray_verl"),
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    script = [str(ROOT / "tests" / "e2e" / "verl_start.py"), TRAINER, *arguments(inputs, out, n_steps)]
    done = subprocess.run(
        [VERL, *command, *script], cwd=out, env={**os.environ, **settings}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return {row["step"]: (row["data"]["train/loss"], row["data"]["train/grad_norm"]) for row in rows}


def test_losses_are_those_of_plain_verl_from_the_start_and_resumed(tmp_path: Path) -> None:
    inputs, plain, ours = tmp_path / "inputs", tmp_path / "plain", tmp_path / "ours"
    subprocess.run([VERL, str(ROOT / "examples/verl_on_cpu/tiny_inputs.py"), str(inputs)], check=True, timeout=300)
    podium = ["-m", "app", "run", "--verl", "--runs-dir", "runs"]
    wanted = train([], inputs, plain, 4)
    assert sorted(wanted) == [1, 2, 3, 4]
    assert train(podium, inputs, ours, 4) == wanted
    wanted = train([], inputs, plain, 6)
    assert sorted(wanted) == [5, 6]
    assert train(podium, inputs, ours, 6) == wanted
    calls = [_calls(file) for file in sorted((ours / "runs").glob("*.db"))]
    assert [(found["train_batch"], found["save_checkpoint"]) for found in calls] == [(4, 1), (2, 1)]
    assert "load_checkpoint" in calls[1]


def _calls(file: Path) -> dict[str, int]:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as run:
        rows: list[tuple[str, int]] = run.execute("select name, n_calls from method").fetchall()
    return dict(rows)
