"""The lookouts of one driver, a process on each node but its own: started, asked once a second, ended.

A lookout that does not come up, or does not answer, is no harm: workers that none sees are asked themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from core.cluster import ActorHandle, Cluster, Outcome
from core.cluster.base import SpawnRequest
from core.health.node_watcher import Lookout, Sight
from core.health.policy import LOOK_S
from core.health.watched_process import LastSeen, Watched

_log = logging.getLogger("podium.health")
_SILENT_S = 3.0
"""A lookout that has not answered for so long is not counted on."""
_AGAIN_S = 15.0
"""How long after a lookout was lost another one is started."""
_LINGERS_S = 60.0
"""How long a lookout stays where nobody is watched any more: a group made anew is seen from its first moment."""


@dataclass(eq=False)
class _Post:
    node: str
    cluster: Cluster
    actor: ActorHandle | None = None
    is_out: bool = False
    next_try_s: float = 0.0
    needed_s: float = 0.0
    answered_s: float = float("-inf")


class Posts:
    """Has a lookout on every node where somebody is watched. ``tell`` is called on a thread of the cluster's."""

    def __init__(self, tell: Callable[[Watched], None], wake: Callable[[], None]) -> None:
        """Begin without any; ``tell`` hears of ends, ``wake`` brings on the next ``tend``."""
        self._tell = tell
        self._wake = wake
        self._lock = threading.Lock()
        self._posts: dict[str, _Post] = {}
        self._closed = False

    def sees(self, watched: Watched) -> bool:
        """Tell whether a lookout on the process's node can be counted on."""
        post = self._posts.get(watched.node)
        return post is not None and time.monotonic() - post.answered_s < _SILENT_S

    def tend(self, far: Sequence[Watched]) -> None:
        """Ask every lookout that has nothing to answer about those on its node; start those that are missing."""
        by_node: dict[str, list[Watched]] = {}
        for one in far:
            if one.node and one.traces.machine and not one.ended.is_set():
                by_node.setdefault(one.node, []).append(one)
        now_s = time.monotonic()
        with self._lock:
            for node, here in by_node.items():
                crews = [crew for one in here for crew, _ in one.crews()]
                if not self._closed and crews:
                    post = self._posts.setdefault(node, _Post(node, crews[0].cluster))
                    post.needed_s = now_s
                    self._ask(post, here)
            for post in [post for post in self._posts.values() if now_s - post.needed_s > _LINGERS_S]:
                self._end(self._posts.pop(post.node))

    def close(self) -> None:
        """End all lookouts; may be called twice."""
        with self._lock:
            self._closed = True
            while self._posts:
                self._end(self._posts.popitem()[1])

    def _ask(self, post: _Post, here: list[Watched]) -> None:
        if post.is_out or time.monotonic() < post.next_try_s:
            return
        try:
            if post.actor is None:
                post.actor = post.cluster.spawn(SpawnRequest(Lookout, "", node=post.node))
            about = tuple((one.pid, one.traces) for one in here)
            asked = post.cluster.ask(post.actor, "look_out", (about, LOOK_S), {})
        except Exception as error:
            self._lost(post, error)
            return
        post.is_out = True
        post.cluster.on_ready(asked, partial(self._answered, post, here))

    def _answered(self, post: _Post, here: list[Watched], outcome: Outcome) -> None:
        if outcome.error is None:
            post.answered_s = time.monotonic()
            for one, sight in zip(here, outcome.value, strict=True):
                self._saw(one, sight)
        else:
            self._lost(post, outcome.error)
        post.is_out = False
        self._wake()

    def _saw(self, one: Watched, sight: Sight) -> None:
        if not sight.has_ended and not sight.keeper:
            # One that is about to end has let go of its memory a moment before.
            if sight.memory_bytes:
                one.last = LastSeen(sight.memory_bytes, sight.n_oom_kills)
            return
        one.last = replace(one.last, status=sight.status, found=sight.found, keeper=sight.keeper)
        one.is_settled.set()
        self._tell(one)

    def _lost(self, post: _Post, error: BaseException | None) -> None:
        _log.debug("the lookout on %s is lost: %s", post.node, error)
        post.actor, post.next_try_s, post.answered_s = None, time.monotonic() + _AGAIN_S, float("-inf")

    def _end(self, post: _Post) -> None:
        if post.actor is not None:
            post.cluster.kill(post.actor)
            post.actor = None
