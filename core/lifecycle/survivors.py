"""What the ranks that live can hand out when others of their group are dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.cluster import Ref
from core.errors import LiveStateError, PodiumError, WorkerMethodError
from core.group.in_flight import ranks_in_words
from core.group.worker_set import Crew
from core.worker import Header, ReplicatedState, savers

if TYPE_CHECKING:
    from core.group.worker_group import RayWorkerGroup


def survivors_of(crew: Crew) -> list[int]:
    """Return the ranks that are not known to be dead."""
    return [rank for rank in range(crew.world_size) if rank not in crew.dead]


def handed_out(crew: Crew, kept: Sequence[type], survivors: Sequence[int], timeout_s: float) -> tuple[Ref, ...]:
    """Return the states of all ranks, None for those that are dead; ``kept`` are the classes that hand theirs out.

    Raises:
        TimeoutError: Some did not answer in time.
        WorkerDiedError: A survivor is none any more.
        WorkerMethodError: ``save_state`` raised.
    """
    replicas = [issubclass(one, ReplicatedState) for one in kept]
    # Of replicas the first survivor's stands for all of them; the others hand out what is theirs alone.
    asked = survivors[:1] if all(replicas) else survivors
    cluster, submitted = crew.cluster, {}
    for rank in asked:
        method = "save_replica" if any(replicas) and rank == asked[0] else "save_state"
        header = Header(method, -1, 0, False, "").pack()
        submitted[rank] = cluster.submit(crew.actors[rank], "_podium_run", (header,), {})
    cluster.fetch([one.receipt for one in submitted.values()], timeout_s)
    nothing = cluster.put(None)
    return tuple(submitted[rank].result if rank in submitted else nothing for rank in range(crew.world_size))


def check_survivors(root: RayWorkerGroup, crew: Crew, has_way_back: bool) -> None:
    """Refuse a change in which the state of a group with dead ranks could be lost for good.

    Raises:
        LiveStateError: Nobody lives, or the survivors would be ended before it shows whether their state will do.
    """
    if not survivors_of(crew):
        raise _lost(root, f"all {crew.world_size} ranks of group {root.name} died and none can hand its state out")
    if not has_way_back and not all(issubclass(one, ReplicatedState) for one in savers(root._class_args.user_class)):
        raise _lost(
            root,
            f"{ranks_in_words(sorted(crew.dead))} of group {root.name} died, and there is no room for new workers "
            "beside the survivors, who would be ended before it shows whether load_state can do with their state; "
            "give the pool room (max_colocate_count)",
        )


def without_the_dead(root: RayWorkerGroup, dead: Sequence[int], error: WorkerMethodError) -> PodiumError:
    """Say that ``load_state`` could not do without the state of dead ranks; with none dead the error stays as it is."""
    if not dead:
        return error
    first = str(error).partition("\n")[0]
    return _lost(
        root,
        f"group {root.name} cannot go on without the state of {ranks_in_words(dead)}, who died: {first}; "
        f"have load_state(states) take None in its place",
    )


def _lost(root: RayWorkerGroup, text: str) -> LiveStateError:
    return LiveStateError(
        f"{text}, or close the group and make it anew on a smaller pool",
        state="stateful",
        group=root.name,
        worker_class=root._class_args.user_class.__name__,
    )
