"""Answers as JSON, whatever the texts in them are."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from app.api.responses import as_json
from tests.app_doubles import House, get, some_call, some_run

HALF = "train\ud800ing"


@dataclass(frozen=True, slots=True)
class Named:
    """A thing with a name and others below it."""

    name: str
    below: tuple[Named, ...] = ()


def test_half_of_a_surrogate_pair_is_a_question_mark_wherever_it_stands() -> None:
    value = {HALF: Named(HALF, (Named("ok"), Named(HALF))), "numbers": [1, None, 2.5]}
    named = {"name": "train?ing", "below": [{"name": "ok", "below": []}, {"name": "train?ing", "below": []}]}
    assert json.loads(as_json(value)) == {"train?ing": named, "numbers": [1, None, 2.5]}


def test_bytes_are_text_and_numbers_that_json_does_not_know_are_null() -> None:
    assert json.loads(as_json({"a": b"caf\xc3\xa9 \xff", "b": float("nan")})) == {"a": "café \ufffd", "b": None}
    assert as_json({"a": np.arange(3)}) == b'{"a":[0,1,2]}'


def test_a_run_with_such_a_name_is_shown_on_pages_and_over_rest() -> None:
    house = House()
    house.source.the_run = some_run(name=HALF)
    house.source.call_rows = [replace(some_call(1), method=HALF)]
    assert get("/api/v1/runs/current", house=house).json()["name"] == "train?ing"
    assert get("/api/v1/calls", house=house).json()["items"][0]["method"] == "train?ing"
    for path in ("/", "/calls", "/calls/1", "/export/calls.csv", "/export/report.html", "/export/trace.json?to=9"):
        answer = get(path, house=house, headers={"accept": "text/html"})
        assert answer.status_code == 200, path
        assert "train?ing" in answer.text, path


def test_the_stream_says_such_a_name_too() -> None:
    house = House(plane=None)
    house.source.the_run = some_run(state="ended")
    house.source.the_pools = [replace(house.source.the_pools[0], name=HALF)]
    text = get("/api/v1/stream", house=house).text
    said = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert [one["name"] for one in said if "name" in one] == ["train?ing"]
    assert said[-1] == {"state": "ended"}
