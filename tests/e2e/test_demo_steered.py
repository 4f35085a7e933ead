"""The demo is changed while it trains, by REST, and learns all the same.

Twenty-odd processes that import torch come up, which takes minutes on two cores: ``make test-slow`` runs it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from app.client import Client, Operation
from tests.e2e.commands import Command

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(800),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make test-slow"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
N_STEPS = 400
"""More than it makes: it is told to end once all changes are done."""
LEAST_RISE = 0.1

DRIVER = '''
import hashlib
import os

import arithmetic_rl
import torch
from arithmetic import workers

import core

LOG, ENOUGH = {log!r}, {enough!r}


def digest(worker):
    """Return a hash of the weights and of what the optimizer keeps of each."""
    told = hashlib.sha256()
    for name, weight in sorted(worker.model.state_dict().items()):
        told.update(name.encode() + weight.numpy().tobytes())
    optimizer = getattr(worker, "optimizer", None)
    if optimizer is not None:
        for state in optimizer.state.values():
            for name, value in sorted(state.items()):
                told.update(name.encode() + torch.as_tensor(value).numpy().tobytes())
        told.update(str(worker.n_updates).encode())
    return told.hexdigest()


class Traced:
    """Writes down what each rank holds before and after a change."""

    def save_state(self):
        self._note("save")
        return super().save_state()

    def load_state(self, states):
        super().load_state(states)
        self._note("load")

    def _note(self, deed):
        with open(LOG, "a", encoding="utf-8") as log:
            log.write(f"{{deed}} {{type(self).__name__}} {{self.rank}}/{{self.world_size}} {{digest(self)}}\\n")


class Actor(Traced, workers.Actor):
    pass


class Reference(Traced, workers.Reference):
    pass


class Rollout(Traced, workers.Rollout):
    pass


def steps_until_enough(total):
    for step in every_step(total):
        if os.path.exists(ENOUGH):
            return
        yield step


arithmetic_rl.Actor, arithmetic_rl.Reference, arithmetic_rl.Rollout = Actor, Reference, Rollout
every_step, core.steps = core.steps, steps_until_enough
arithmetic_rl.main(["--steps", {n_steps!r}])
'''


def by_change(log: str) -> list[dict[str, list[tuple[str, str]]]]:
    """Return for each change what each role saved and loaded: the place of a rank, and its hash."""
    changes: list[dict[str, list[tuple[str, str]]]] = []
    last = "load"
    for line in log.splitlines():
        deed, role, place, told = line.split()
        if deed == "save" and last == "load":
            changes.append({})
        changes[-1].setdefault(f"{role} {deed}", []).append((place, told))
        last = deed
    return changes


def test_pools_of_the_training_demo_are_paused_merged_split_and_resized(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers import the demo's modules too.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]))
    log, enough = short_dir / "states.txt", short_dir / "enough"
    source = DRIVER.format(log=str(log), enough=str(enough), n_steps=str(N_STEPS))
    (short_dir / "driver.py").write_text(source, encoding="utf-8")
    with Command(short_dir, "run", "--control", "--runs-dir", "runs", "driver.py") as command:
        command.until(lambda: command.out.count(r"(?m)^step \d") >= 2, "two steps")
        (token,) = short_dir.glob("runs/*.control-token")
        client = Client(command.origin, token.read_text(encoding="utf-8").strip(), timeout_s=30)

        def done(operation: Operation) -> Operation:
            return client.wait(operation, timeout_s=150)

        done(client.pause("trainers"))
        held = command.until(lambda: client.pool("trainers").n_calls_waiting, "a call that waits at the gate")
        n_steps = command.out.count(r"(?m)^step \d")
        assert held == 1
        done(client.resume("trainers"))
        command.until(lambda: command.out.count(r"(?m)^step \d") > n_steps, "a step after the pause")

        made = [
            done(client.merge(["trainers", "generators"], "all")),
            done(client.split("all", [("train", 2, ["actor", "reference"]), ("answers", 2, ["rollout"])])),
            done(client.merge(["train", "answers"], "both")),
            done(client.resize("both", [2])),
            done(client.resize("both", [4])),
        ]
        assert [operation.state for operation in made] == ["succeeded"] * 5
        assert (made[3].before, made[3].after) == ("4", "2")
        assert (made[4].before, made[4].after) == ("2", "4")
        pool = client.pool("both")
        assert (pool.world_size, pool.groups) == (4, ("actor", "reference", "rollout"))
        n_steps = command.out.count(r"(?m)^step \d")
        command.until(lambda: command.out.count(r"(?m)^step \d") > n_steps, "a step after the last change")
        enough.touch()
        assert command.wait(200) == 0, command.err.text
        found = re.search(r"held-out exact match: ([\d.]+) before RL, ([\d.]+) after", command.out.text)
        assert found is not None, command.out.text
        assert float(found[2]) - float(found[1]) >= LEAST_RISE
        assert command.gone()
    changes = by_change(log.read_text(encoding="utf-8"))
    sizes = [{place.split("/")[1] for place, _ in change["Actor load"]} for change in changes]
    assert sizes == [{"4"}, {"2"}, {"4"}, {"2"}, {"4"}]
    for change in changes:
        for role in {key.split()[0] for key in change}:
            saved, loaded = change[f"{role} save"], change[f"{role} load"]
            assert len({told for _, told in saved}) == 1, f"the ranks of {role} differed before the change"
            assert {told for _, told in loaded} == {saved[0][1]}, f"{role} is not what it was"
