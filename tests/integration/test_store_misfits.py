"""Files that hold what no Podium writes: the pages show the rest, and no route fails on a text."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import cast

import pytest

from app.errors import RunFileError
from app.store.reader import Reader
from app.store.texts import LINE, MESSAGE, TRACEBACK
from app.store.writer import Writer
from core.events import CallFinished, DeathReport, ErrorFacts, Notice, RankState, WorkerEnded
from tests.app_doubles import House, MemorySource, get
from tests.store_scene import MS, at, facts, one_call, people, started

pytestmark = pytest.mark.integration
PAGES = (
    "/", "/timeline", "/calls", "/calls/1", "/heatmap", "/stragglers", "/data", "/pools", "/workers", "/operations",
    "/postmortem", "/api/v1/runs/current/overview", "/api/v1/calls/1", "/api/v1/workers", "/api/v1/events",
)  # fmt: skip
HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a run in which a worker died and somebody said more than anybody reads."""
    path = tmp_path_factory.mktemp("misfits") / "run.db"
    writer = Writer(path, facts())
    writer.start()
    others = (RankState(1, "in update", 1.5),)
    report = DeathReport(role="actor", worker="w", actor_id="a", cause="killed by signal 9", signal=9, others=others)
    error = ErrorFacts("ValueError", "m" * 10**6, "t" * 10**6 + "the last line", 0)
    for event in (
        *people(),
        *one_call(1, 10),
        started(2, 20),
        CallFinished(2, at(30), "error", 7, 7, (4, 4), 1, 800, 400, MS, MS, MS, MS, MS, error=error),
        WorkerEnded(at(50), "actor", 0, True, "gone", report=report),
        Notice(at(60), "info", "x" * 10**7),
    ):
        writer.put(event)
    writer.close()
    return path


@pytest.fixture
def path(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy of that file, to be changed."""
    return Path(shutil.copy(recorded, tmp_path / "run.db"))


def change(path: Path, statement: str, *values: object) -> None:
    """Change the file as somebody else might."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


def house_of(reader: Reader) -> House:
    """Return the app as it shows a run that is over."""
    return House(source=cast(MemorySource, reader), plane=None)


def statuses(path: Path) -> dict[str, int]:
    """Return how each page and route is answered."""
    with contextlib.closing(Reader(path, deadline_s=10)) as reader:
        house = house_of(reader)
        return {page: get(page, house=house, headers=HTML).status_code for page in PAGES}


def text_of(path: Path, page: str) -> str:
    """Return a page."""
    with contextlib.closing(Reader(path, deadline_s=10)) as reader:
        return get(page, house=house_of(reader), headers=HTML).text


def test_what_the_other_ranks_did_is_shown_where_it_can_be_read_and_said_where_not(path: Path) -> None:
    change(path, "UPDATE death SET others = others || char(10) || 'two minutes' || char(10) || '2' || char(9) || 'x'")
    assert set(statuses(path).values()) == {200}
    page = text_of(path, "/postmortem")
    assert "<b>rank 1</b> in update" in page
    assert "The state of 2 ranks is unreadable in this file." in page


def test_a_text_of_ten_megabytes_is_cut_where_it_is_recorded_and_says_so(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (longest,) = connection.execute("SELECT max(length(text)) FROM event").fetchone()
        lengths = connection.execute(
            "SELECT max(length(error_message)), max(length(error_traceback)) FROM call"
        ).fetchone()
    assert LINE - 100 < longest <= LINE
    assert (MESSAGE < lengths[0] < MESSAGE + 100, TRACEBACK < lengths[1] < TRACEBACK + 100) == (True, True)
    assert "(9,996,060 more characters were cut)" in text_of(path, "/")
    assert "the last line" in text_of(path, "/calls/2")


def test_a_long_text_of_an_older_file_is_cut_where_it_is_shown(path: Path) -> None:
    change(path, "UPDATE event SET text = ? WHERE id = (SELECT max(id) FROM event)", "y" * 10**7)
    change(path, "UPDATE call SET error_message = ?, error_traceback = ? WHERE id = 1", "y" * 10**6, "y" * 10**6)
    for page in ("/", "/calls/1", "/postmortem", "/api/v1/events", "/api/v1/calls/1"):
        assert len(text_of(path, page)) < 400_000, page
    assert "(9996000 more characters)" in text_of(path, "/postmortem")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event SET text = CAST(x'ff80fe' AS TEXT)",
        "UPDATE run SET name = CAST(x'eda080' AS TEXT)",
    ],
)
def test_a_text_that_is_not_utf_8_is_shown_beside_the_rest(path: Path, statement: str) -> None:
    change(path, statement)
    assert set(statuses(path).values()) == {200}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE pool SET process_on_nodes = 'four'",
        "UPDATE pool SET process_on_nodes = '999999999'",
        "UPDATE death SET memory_bytes = 'much', signal = 'nine'",
        "UPDATE run SET n_recorded = 'some'",
        "UPDATE worker SET pid = 'forty'",
        "UPDATE worker SET node = x'00ff'",
        "UPDATE pool_generation SET slots = 'here'",
        "UPDATE death SET at_ns = 'noon', evidence = 7",
        "UPDATE call SET started_ns = 'noon'",
        "UPDATE run SET heartbeat_wall_ns = 'noon'",
        "UPDATE run SET n_calls = 'many'",
    ],
)
def test_what_nothing_can_be_made_of_is_a_refusal_that_names_the_file(path: Path, statement: str) -> None:
    change(path, statement)
    found = statuses(path)
    assert set(found.values()) <= {200, 503}
    assert 503 in found.values()
    with contextlib.closing(Reader(path, deadline_s=10)) as reader:
        body = get("/api/v1/runs/current/overview", house=house_of(reader))
        if body.status_code != 200:
            assert str(path) in body.json()["detail"]
            assert body.json()["type"] == "urn:podium:problem:unreadable-file"


def test_a_plan_that_is_no_plan_breaks_no_page(path: Path) -> None:
    for plan in ('{"pools": [{"pool": "\\ud800", "before": [1], "after": [999999999]}], "groups": []}', "[" * 9_999,
                 '{"pools": [], "groups": [], "downtime_s": 1e999}'):  # fmt: skip
        change(
            path,
            "INSERT OR REPLACE INTO operation (id, uid, kind, pool, state, who, created_ns, updated_ns, before, after, "
            "error, plan) VALUES (1, 'op', 'split', 'train', 'succeeded', 'me', 1, 2, '', '', '', ?)",
            plan,
        )
        assert set(statuses(path).values()) == {200}, plan[:80]


def test_a_reader_says_what_does_not_fit(path: Path) -> None:
    change(path, "UPDATE pool SET process_on_nodes = 'four'")
    with contextlib.closing(Reader(path)) as reader, pytest.raises(RunFileError, match="contains an invalid value"):
        reader.pools()
