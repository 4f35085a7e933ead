"""What the living ranks of a group can save when others are dead."""

from __future__ import annotations

from collections.abc import Sequence

from core.cluster import Ref
from core.errors import LiveStateError, PodiumError, WorkerMethodError
from core.group.group_state import GroupState
from core.group.live_workers import LiveWorkers
from core.health.in_flight import ranks_in_words
from core.worker import ReplicatedState, entries, savers
from core.worker.call_header import plain_header


def survivors_of(live: LiveWorkers) -> list[int]:
    """Return the ranks that are not known to be dead."""
    return [rank for rank in range(live.world_size) if rank not in live.deaths.dead]


def collect_states(
    live: LiveWorkers, saving: Sequence[type], survivors: Sequence[int], timeout_s: float
) -> tuple[Ref, ...]:
    """Return the states of all ranks, None for those that are dead; ``saving`` are the classes that save theirs.

    Raises:
        TimeoutError: Some did not answer in time.
        WorkerDiedError: A survivor has died too.
        WorkerMethodError: ``save_state`` raised.
    """
    replicas = [issubclass(one, ReplicatedState) for one in saving]
    # Of replicas the first survivor's stands for all of them; the others save what is theirs alone.
    asked = survivors[:1] if all(replicas) else survivors
    cluster, submitted = live.cluster, {}
    for rank in asked:
        method = "save_replica" if any(replicas) and rank == asked[0] else "save_state"
        header = plain_header(method, materialize=False, views=False).pack()
        submitted[rank] = cluster.submit(live.workers.actors[rank], entries.RUN, (header,), {})
    cluster.fetch([one.receipt for one in submitted.values()], timeout_s)
    nothing = cluster.put(None)
    return tuple(submitted[rank].result if rank in submitted else nothing for rank in range(live.world_size))


def check_survivors(group: GroupState, live: LiveWorkers, can_roll_back: bool) -> None:
    """Refuse a change in which the state of a group with dead ranks could be lost for good.

    Raises:
        LiveStateError: No rank lives, or the survivors would be ended before it shows whether their state will do.
    """
    if not survivors_of(live):
        raise _lost(group, f"all {live.world_size} ranks of group {group.name} died and none can save its state")
    user_class = group.settings.class_args.user_class
    if not can_roll_back and not all(issubclass(one, ReplicatedState) for one in savers(user_class)):
        raise _lost(
            group,
            f"{ranks_in_words(sorted(live.deaths.dead))} of group {group.name} died, and there is no room for new "
            "workers beside the survivors, who would be ended before it shows whether load_state can do with their "
            "state; give the pool room (max_colocate_count)",
        )


def without_the_dead(group: GroupState, dead: Sequence[int], error: WorkerMethodError) -> PodiumError:
    """Say that ``load_state`` could not do without the state of dead ranks; with none dead it stays as it is."""
    if not dead:
        return error
    first = str(error).partition("\n")[0]
    return _lost(
        group,
        f"group {group.name} cannot continue without the state of {ranks_in_words(dead)}, who died: {first}; "
        f"have load_state(states) take None in its place",
    )


def _lost(group: GroupState, text: str) -> LiveStateError:
    return LiveStateError(
        f"{text}, or close the group and make a new one on a smaller pool",
        state="stateful",
        group=group.name,
        worker_class=group.settings.class_args.user_class.__name__,
    )
