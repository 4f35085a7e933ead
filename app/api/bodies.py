"""Request bodies of commands as strict JSON: an unknown field, a number as text or a list too long is refused.

The bodies are made from ``web.commands``. Whether a command makes sense (sizes that add up, groups that exist) is for
the control plane to say; here are only the bounds.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from core.control.commands import COMMAND_CLASSES, Command, Part
from web.commands import CommandDefinition, Kind

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


class PartRequest(_Strict):
    """One of the pools that a split makes: its name, how many slots it gets, and the groups that go there."""

    name: Name
    size: Size
    groups: Annotated[list[Name], Field(max_length=_MAX_ITEMS)] = []


_TYPES: dict[Kind, Any] = {
    Kind.POOL: Name,
    Kind.GROUP: Name,
    Kind.NEW_NAME: Name,
    Kind.POOLS: Annotated[list[Name], Field(min_length=1, max_length=_MAX_ITEMS)],
    Kind.SIZES: Annotated[list[Size], Field(min_length=1, max_length=_MAX_ITEMS)],
    Kind.PARTS: Annotated[list[PartRequest], Field(min_length=1, max_length=_MAX_ITEMS)],
    Kind.GENERATIONS: Annotated[dict[Name, Generation], Field(max_length=_MAX_ITEMS)],
}


def request_model(definition: CommandDefinition) -> type[ControlRequest]:
    """Return the model of the body of a command."""
    if not definition.in_body:
        return ControlRequest
    fields: dict[str, Any] = {
        one.name: (_TYPES[one.kind], {} if one.kind is Kind.GENERATIONS else ...) for one in definition.in_body
    }
    return create_model(
        f"{definition.kind.title()}Request",
        __base__=ControlRequest,
        __doc__=definition.body,
        __module__=__name__,
        __cls_kwargs__={"json_schema_extra": {"examples": [dict(definition.example)]}},
        **fields,
    )


def command_of(definition: CommandDefinition, body: ControlRequest | None, who: str, **in_path: str) -> Command:
    """Return the command that a request asks for."""
    given = {one.name: _frozen(getattr(body, one.name)) for one in definition.in_body}
    return cast(Command, COMMAND_CLASSES[definition.kind](**given, **in_path, who=who))


def _frozen(value: Any) -> Any:
    match value:
        case PartRequest():
            return Part(value.name, value.size, tuple(value.groups))
        case list():
            return tuple(map(_frozen, value))
        case dict():
            return tuple(value.items())
    return value
