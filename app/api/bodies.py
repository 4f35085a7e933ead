"""What may be said with a command, as strict JSON: a field too many, a number as text or a list too long is refused.

Whether a command makes sense (sizes that add up, groups that exist) is the plane's to say; here are only the bounds.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_NAME = 200
_MAX_ITEMS = 1000
_MAX_SIZE = 100_000
_MAX_DEADLINE_S = 24 * 3600.0

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00-\x1f\x7f]+$")]
Size = Annotated[int, Field(ge=1, le=_MAX_SIZE)]
Generation = Annotated[int, Field(ge=0, le=2**53)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ControlRequest(_Strict):
    """What every command takes; an empty body says nothing."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"expected_generation": 3, "deadline_s": 60.0}]})

    expected_generation: Generation | None = None
    deadline_s: float | None = Field(None, gt=0, le=_MAX_DEADLINE_S, allow_inf_nan=False)


class ResizeRequest(ControlRequest):
    """The pool's new processes per node."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"process_on_nodes": [2], "expected_generation": 3}]})

    process_on_nodes: Annotated[list[Size], Field(min_length=1, max_length=_MAX_ITEMS)]


class PartRequest(_Strict):
    """One of the pools that a split makes: its name, how many slots it gets, and the groups that go there."""

    name: Name
    size: Size
    groups: Annotated[list[Name], Field(max_length=_MAX_ITEMS)] = []


class SplitRequest(ControlRequest):
    """The pools that the pool's slots are split into, in rank order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "parts": [
                        {"name": "train", "size": 2, "groups": ["actor", "ref"]},
                        {"name": "rollout", "size": 2, "groups": ["rollout"]},
                    ],
                    "expected_generation": 3,
                }
            ]
        }
    )

    parts: Annotated[list[PartRequest], Field(min_length=1, max_length=_MAX_ITEMS)]


class MergeRequest(ControlRequest):
    """The pools to make one of, and its name; ``expected_generations`` is what the asker saw of each."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"pools": ["train", "rollout"], "name": "all", "expected_generations": {"train": 4, "rollout": 4}}
            ]
        }
    )

    pools: Annotated[list[Name], Field(min_length=1, max_length=_MAX_ITEMS)]
    name: Name
    expected_generations: Annotated[dict[Name, Generation], Field(max_length=_MAX_ITEMS)] = {}


class MoveRequest(ControlRequest):
    """The pool that a group goes to; ``expected_generation`` is of that pool."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pool": "rollout", "expected_generation": 4}]})

    pool: Name
