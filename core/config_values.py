"""The values of a configuration, one by one, as they are recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from core.errors import UsageError

MOST_VALUES, MOST_NAME_CHARS, MOST_VALUE_CHARS = 1_000, 200, 1_000


def config_values(config: object) -> tuple[tuple[str, str], ...]:
    """Return the values of ``config`` by dotted name, each as JSON; what JSON cannot hold is its ``repr`` as text.

    Nested mappings and dataclasses become dotted names, such as "actor.optim.lr"; a list is one value. Names and values
    are cut to 200 and 1,000 characters.

    Raises:
        UsageError: It is neither a mapping nor a dataclass, or has more than 1,000 values.
    """
    if not isinstance(config, Mapping) and not _is_record(config):
        raise UsageError(f"log_config takes a mapping or a dataclass, not a {type(config).__name__}")
    found: dict[str, str] = {}
    for name, value in _leaves("", config, ()):
        found[name] = value
        if len(found) > MOST_VALUES:
            raise UsageError(f"log_config records at most {MOST_VALUES:,} values; log a part of the configuration")
    return tuple(found.items())


def _leaves(name: str, value: object, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    children = _children(value)
    if not children or id(value) in above:
        if name:
            yield name[:MOST_NAME_CHARS], _text_of(value) if id(value) not in above else '"..."'
        return
    for key, child in children.items():
        yield from _leaves(f"{name}.{key}" if name else str(key), child, (*above, id(value)))


def _children(value: object) -> dict[object, object]:
    if _is_record(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    return dict(value) if isinstance(value, Mapping) else {}


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _text_of(value: object) -> str:
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(repr(value), ensure_ascii=False)
    return (
        text if len(text) <= MOST_VALUE_CHARS else json.dumps(text[: MOST_VALUE_CHARS - 20] + "…", ensure_ascii=False)
    )
