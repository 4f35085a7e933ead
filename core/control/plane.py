"""The control plane: accepts commands from any thread and executes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from core.control.checks import find_pool
from core.control.commands import (
    Command,
    Operation,
    OperationState,
    Plan,
    PoolSnapshot,
    Resize,
    expected_generations,
)
from core.control.estimate import Experience
from core.control.executor import ChangeExecutor
from core.control.operations import OperationBook
from core.control.pausing import Pausing
from core.control.plans import Change, plan_change
from core.control.slots import ClusterCapacity
from core.control.snapshot import take_snapshot
from core.errors import CallTimeoutError, GenerationConflictError, StateError, UnknownNameError
from core.pool import PoolState, RayResourcePool
from core.runtime import Runtime, refuse_workers

T = TypeVar("T")
_CLUSTER_ANSWERS_S = 20.0
_TAKEN_BACK_S = 5.0
_LOOK_S = 0.2


@dataclass(eq=False)
class _UnderWay:
    """The change in progress. ``over`` is set when its operation is done; the thread ``starter`` prepares it."""

    operation_id: str
    executor: ChangeExecutor
    over: threading.Event = field(default_factory=threading.Event)
    starter: threading.Thread | None = None


class RuntimeControl:
    """Commands on the pools of one runtime.

    Pause and resume only set a pool's gate, which is safe from any thread. A change is planned from values, prepared on
    a thread of the control plane, and executed by a driver's thread at its next safe point; one at a time. Threads that
    submit commands use no Ray handle.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Control the pools that ``runtime`` knows."""
        self._runtime = runtime
        self._lock = threading.RLock()
        self._book = OperationBook(runtime)
        self._pausing = Pausing(self._book)
        self._experience = Experience()
        self._under_way: _UnderWay | None = None

    def pools(self) -> tuple[PoolSnapshot, ...]:
        """Return the pools that are not closed, by name."""
        return tuple(_snapshot(pool) for _, pool in sorted(self._runtime.pools().items()))

    def pool(self, name: str) -> PoolSnapshot:
        """Return one pool; errors as in ``ControlPlane``."""
        return _snapshot(self.find(name))

    def find(self, name: str) -> RayResourcePool:
        """Return a pool that is not closed; errors as in ``pool``."""
        pool = self._runtime.pools().get(name)
        if not isinstance(pool, RayResourcePool):
            find_pool(take_snapshot(self._runtime), name)
            raise UnknownNameError(f"there is no pool {name!r}", name=name)
        return pool

    def operation(self, operation_id: str) -> Operation:
        """Return an operation; errors as in ``ControlPlane``."""
        return self._book.find(operation_id)

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations of this run, the newest last."""
        return self._book.all()

    def plan(self, command: Command) -> Plan:
        """Return what a command would do; errors as in ``ControlPlane``."""
        self._check_generations(command)
        if not command.changes_slots:
            return self._pausing.plan(self.find(command.pool), command)
        return _off_thread(lambda: self._planned(command)).plan

    def submit(self, command: Command) -> Operation:
        """Submit a command; errors as in ``ControlPlane``."""
        refuse_workers(f"{type(command).__name__} of a pool")
        if not command.changes_slots:
            with self._lock:
                self._check_generations(command)
                self._refuse_running(command.pool)
                return self._pausing.submit(self.find(command.pool), command)
        self._refuse_second(command)
        self._check_generations(command)
        change = _off_thread(lambda: self._planned(command))
        under_way = self._opened(change)
        operation = self._book.find(under_way.operation_id)
        name = f"podium-{operation.id}"
        under_way.starter = threading.Thread(target=self._bring_up, args=(under_way,), name=name, daemon=True)
        under_way.starter.start()
        return operation

    def execute(self, command: Command) -> Operation:
        """Execute a driver's own command at once on the calling thread; return its operation, which is done.

        Raises:
            PodiumError: It was refused, as by ``submit``, or it failed: nothing has changed then.
        """
        refuse_workers(f"{type(command).__name__} of a pool")
        if not command.changes_slots:
            return self.submit(command)
        self.at_safe_point()
        self._refuse_second(command)
        self._check_generations(command)
        under_way = self._opened(self._planned(command))
        operation_id = under_way.operation_id
        began = time.monotonic()
        try:
            self._report(operation_id, OperationState.PREPARING, "")
            under_way.executor.prepare(
                under_way.over.is_set, lambda words: self._report(operation_id, OperationState.PREPARING, words)
            )
            under_way.executor.blocked_before_s = time.monotonic() - began
            with self._lock:
                self._book.move(operation_id, OperationState.RUNNING)
        except BaseException as error:
            self._failed(under_way, error)
            raise
        self._carry_out(under_way, raising=True)
        return self._book.find(operation_id)

    def cancel(self, operation_id: str) -> Operation:
        """Cancel an operation that is not running yet; errors as in ``ControlPlane``."""
        with self._lock:
            operation = self._book.find(operation_id)
            under_way = self._under_way
            if operation.kind == "pause":
                return self._pausing.cancel(operation, self._runtime.pools().get(operation.pool))
            if operation.state.done or operation.state is OperationState.RUNNING or under_way is None:
                raise StateError(
                    f"operation {operation_id} is {operation.state.value}, only a waiting one can be cancelled",
                    state=operation.state.value,
                )
            return self._end(under_way, OperationState.CANCELLED, "")

    def resize(self, pool: str, process_on_nodes: Sequence[int], deadline_s: float = 120.0) -> Operation:
        """Execute ``RayResourcePool.resize``."""
        return self.execute(Resize(pool, "driver", tuple(process_on_nodes), deadline_s=deadline_s))

    def close(self) -> None:
        """Cancel a change that waits: the driver has ended. May be called twice."""
        with self._lock:
            under_way = self._under_way
            if under_way is not None and self._book.find(under_way.operation_id).state is not OperationState.RUNNING:
                self._end(under_way, OperationState.FAILED, "the driver ended before it reached a safe point")
        if under_way is not None and under_way.starter is not None and under_way.starter.is_alive():
            # Its workers are ended while the cluster is connected: later the runtime would connect to another one.
            under_way.starter.join(_TAKEN_BACK_S)

    def at_safe_point(self) -> None:
        """Execute the change that waits for a safe point, if any; a driver's thread calls it."""
        with self._lock:
            under_way = self._under_way
            if under_way is None:
                return
            if self._book.find(under_way.operation_id).state is not OperationState.WAITING_FOR_SAFE_POINT:
                return
            self._withdraw(under_way.executor)
            self._book.move(under_way.operation_id, OperationState.RUNNING)
            # Under the lock: a deadline that passes right now must not cancel it while this thread executes it.
            under_way.executor.was_carried_out = True
        self._carry_out(under_way)

    def _planned(self, command: Command) -> Change:
        return plan_change(
            command, take_snapshot(self._runtime), ClusterCapacity(self._runtime.pools()), self._experience
        )

    def _opened(self, change: Change) -> _UnderWay:
        """Open the operation of a change, if none is in progress."""
        with self._lock:
            self._refuse_second(change.command)
            self._check_generations(change.command)
            operation = self._book.open(change.command, OperationState.PENDING, change.before, plan=change.plan)
            deadline = time.monotonic() + change.command.deadline_s
            under_way = _UnderWay(operation.id, ChangeExecutor(self._runtime, change, operation.id, deadline))
            self._under_way = under_way
            return under_way

    def _bring_up(self, under_way: _UnderWay) -> None:
        """Prepare a change, then wait until a driver's thread executes it, its deadline passes, or it is cancelled."""
        executor, operation_id = under_way.executor, under_way.operation_id
        try:
            self._report(operation_id, OperationState.PREPARING, "")
            executor.prepare(
                under_way.over.is_set, lambda words: self._report(operation_id, OperationState.PREPARING, words)
            )
            with self._lock:
                if under_way.over.is_set():
                    executor.abandon()
                    return
                self._book.move(operation_id, OperationState.WAITING_FOR_SAFE_POINT)
                self._register(executor)
        except BaseException as error:
            self._failed(under_way, error)
            return
        closed = ""
        while not closed and (left_s := executor.deadline - time.monotonic()) > 0:
            if under_way.over.wait(min(left_s, _LOOK_S)):
                break
            # New workers for a pool that its owner has closed would occupy slots that another pool may need.
            closed = next((pool.name for pool in executor.pools if pool.gate.state is PoolState.CLOSED), "")
        with self._lock:
            waits = self._book.find(operation_id).state is OperationState.WAITING_FOR_SAFE_POINT
            if waits:
                seconds = executor.change.command.deadline_s
                words = f"the driver reached no safe point within {seconds:g} s: it made no call, step or checkpoint"
                if closed:
                    self._end(under_way, OperationState.FAILED, f"pool {closed} was closed meanwhile")
                else:
                    self._end(under_way, OperationState.EXPIRED, words)
            never_ran = waits or not executor.was_carried_out
        if never_ran:
            executor.abandon()

    def _carry_out(self, under_way: _UnderWay, raising: bool = False) -> None:
        """Execute a change on this thread; a failure is recorded, and raised only if ``raising``."""
        executor, operation_id = under_way.executor, under_way.operation_id
        try:
            executor.carry_out(lambda words: self._report(operation_id, OperationState.RUNNING, words))
        except BaseException as error:
            self._failed(under_way, error)
            if raising or not isinstance(error, Exception):
                raise
            return
        self._experience.learn(executor.switch_s)
        self._end(under_way, OperationState.SUCCEEDED, "", executor.change.after)

    def _failed(self, under_way: _UnderWay, error: BaseException) -> None:
        with self._lock:
            if under_way.over.is_set():
                return  # It was cancelled or has expired: that is why it failed.
            late = isinstance(error, TimeoutError) and time.monotonic() >= under_way.executor.deadline
            state = OperationState.EXPIRED if late else OperationState.FAILED
            self._end(under_way, state, str(error) or type(error).__name__)

    def _end(self, under_way: _UnderWay, state: OperationState, error: str, after: str = "") -> Operation:
        with self._lock:
            self._withdraw(under_way.executor)
            self._under_way = None
            downtime_s = under_way.executor.downtime_s
            moved = self._book.move(under_way.operation_id, state, after=after, error=error, downtime_s=downtime_s)
            under_way.over.set()
        return moved

    def _report(self, operation_id: str, state: OperationState, words: str) -> None:
        with self._lock:
            if not self._book.find(operation_id).state.done:
                self._book.move(operation_id, state, progress=words)

    def _register(self, executor: ChangeExecutor) -> None:
        """Let drivers' threads execute the change at their next safe point; threads waiting at a gate do so at once."""
        for runtime in self._runtimes_of(executor):
            runtime.safe_point.register(self.at_safe_point)
        for pool in self._runtime.pools().values():
            pool.gate.wake()

    def _withdraw(self, executor: ChangeExecutor) -> None:
        for runtime in self._runtimes_of(executor):
            runtime.safe_point.withdraw(self.at_safe_point)

    def _runtimes_of(self, executor: ChangeExecutor) -> tuple[Runtime, ...]:
        """Return the runtimes whose threads may execute the change: the control plane's and that of the pools."""
        return tuple({id(runtime): runtime for runtime in (self._runtime, executor.runtime)}.values())

    def _check_generations(self, command: Command) -> None:
        for name, generation in expected_generations(command).items():
            pool = self.find(name)
            if pool.generation != generation:
                raise GenerationConflictError(
                    f"pool {name} is at generation {pool.generation}, not {generation}: it was changed"
                    f"{self._by_whom(name)}; read the pool again",
                    state=pool.state.value,
                    expected=generation,
                    actual=pool.generation,
                )

    def _by_whom(self, pool: str) -> str:
        for operation in reversed(self._book.all()):
            plan = operation.plan
            if operation.state is not OperationState.SUCCEEDED or plan is None:
                continue
            if pool in {change.pool for change in plan.pools}:
                words = f" -> {operation.after}" if operation.after else ""
                return f" by {operation.who} ({operation.kind} {operation.id}: {operation.before}{words})"
        return ""

    def _refuse_second(self, command: Command) -> None:
        """Refuse a change while one is in progress; as a conflict if it expects a generation that will change."""
        with self._lock:
            if self._under_way is None:
                return
            operation = self._book.find(self._under_way.operation_id)
            words = (
                f"operation {operation.id} ({operation.kind} of {operation.pool} by {operation.who}) is in progress, "
                f"{operation.state.value}; one runs at a time: wait for it or cancel it"
            )
            for name, generation in expected_generations(command).items():
                if name in self._under_way.executor.change.pools:
                    actual = self.find(name).generation
                    message = f"pool {name} at generation {generation} is being changed by another operation: {words}"
                    raise GenerationConflictError(message, operation.state.value, expected=generation, actual=actual)
            raise StateError(words, state=operation.state.value)

    def _refuse_running(self, pool: str) -> None:
        """Refuse a pause or resume of a pool that a running change works on."""
        under_way = self._under_way
        if under_way is None or pool not in under_way.executor.change.pools:
            return
        operation = self._book.find(under_way.operation_id)
        if operation.state is OperationState.RUNNING:
            raise StateError(
                f"pool {pool} is being changed by operation {operation.id} ({operation.kind} by {operation.who}); wait "
                f"until it has ended",
                state="changing",
            )


def _off_thread(work: Callable[[], T]) -> T:
    """Run ``work``, which may query the cluster, on a thread of its own: threads that serve HTTP must not do that.

    Raises:
        CallTimeoutError: The cluster did not answer.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="podium-plan", daemon=True)
    thread.start()
    thread.join(_CLUSTER_ANSWERS_S)
    if failed:
        raise failed[0]
    if not done:
        raise CallTimeoutError(
            f"timed out after {_CLUSTER_ANSWERS_S:g} s querying the cluster for free resources",
            timeout_s=_CLUSTER_ANSWERS_S,
        )
    return done[0]


def _snapshot(pool: RayResourcePool) -> PoolSnapshot:
    is_unplaced = pool.placement_if_any is None
    return PoolSnapshot(
        name=pool.name,
        state="pending" if is_unplaced and pool.state is PoolState.ACTIVE else pool.state.value,
        generation=pool.generation,
        process_on_nodes=tuple(pool.store),
        world_size=pool.world_size,
        groups=pool.groups,
        n_calls_in_flight=pool.gate.n_in_flight,
        n_calls_waiting=pool.gate.n_waiting,
    )
