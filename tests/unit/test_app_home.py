"""A folder of runs behind one server: the index of its files, their pages, and who may see them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest

from app.api import Tokens
from app.errors import RunsFolderError
from app.home import index as indexes
from app.home.index import INDEX_FILE, RunsIndex
from app.home.notes import RunNote, note_path, read_note, write_note
from app.home.site import Site
from app.settings import Limits, ServerSettings
from tests.app_doubles import HOST, PORT, URL
from tests.file_fuzz import record

LONG_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs and with what is not a run."""
    made = tmp_path_factory.mktemp("runs")
    record(made / "20260101-000000-one-1.db", 40)
    record(made / "20260102-000000-two-2.db", 20)
    (made / "foreign.db").write_bytes(b"not a database")
    (made / "empty.db").touch()
    (made / "loop.db").symlink_to(made / "loop.db")
    (made / "folder.db").mkdir()
    os.mkfifo(made / "pipe.db")
    (made / "notes.txt").touch()
    return made


def test_every_file_is_listed_as_what_it_is(folder: Path) -> None:
    found = {one.file: one for one in RunsIndex(folder).refresh(LONG_S)}
    assert {file: one.state for file, one in found.items()} == {
        "20260101-000000-one-1.db": "ended",
        "20260102-000000-two-2.db": "ended",
        "foreign.db": "unreadable",
        "empty.db": "unreadable",
        "loop.db": "unreadable",
        "folder.db": "unreadable",
        "pipe.db": "unreadable",
    }
    assert found["foreign.db"].problem == "is not a Podium run file: file is not a database"
    assert found["pipe.db"].problem == "cannot be read: it is not a regular file"
    one = found["20260101-000000-one-1.db"]
    assert one.run is not None
    assert (one.n_ranks, one.n_steps, [series.name for series in one.metrics]) == (2, 2, ["reward"])
    assert one.n_bytes == (folder / one.file).stat().st_size


def test_a_second_look_opens_only_what_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = indexes._read

    def noting(path: Path, stamp: tuple[int, ...]) -> object:
        read.append(path.name)
        return real(path, stamp)

    monkeypatch.setattr(indexes, "_read", noting)
    index = RunsIndex(folder)
    first = index.refresh(LONG_S)
    read.clear()
    assert index.refresh(LONG_S) == first
    assert RunsIndex(folder).refresh(LONG_S) == first
    assert read == []
    write_note(folder / "20260102-000000-two-2.db", RunNote(note="n", tags=("t",)))
    (changed,) = [one for one in index.refresh(LONG_S) if one.note]
    assert (read, changed.file, changed.tags) == ([changed.file], "20260102-000000-two-2.db", ("t",))
    write_note(folder / "20260102-000000-two-2.db", RunNote())
    assert not note_path(folder / "20260102-000000-two-2.db").exists()


def test_a_file_that_is_busy_is_tried_again_by_the_next_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / INDEX_FILE).unlink(missing_ok=True)
    index = RunsIndex(folder)
    with monkeypatch.context() as patch:
        patch.setattr(indexes, "_DEADLINE_S", 0.0)
        busy = [one for one in index.refresh(LONG_S) if "-1.db" in one.file]
    assert [one.state for one in busy] == ["unreadable"]
    again = [one for one in index.refresh(LONG_S) if "-1.db" in one.file]
    assert [one.state for one in again] == ["ended"]


def test_a_look_that_has_used_up_its_time_names_the_rest_and_the_next_one_goes_on(folder: Path) -> None:
    (folder / INDEX_FILE).unlink(missing_ok=True)
    index = RunsIndex(folder)
    n_unread = [sum(one.state == "not read yet" for one in index.refresh(0.0)) for _ in range(5)]
    assert n_unread == [3, 2, 1, 0, 0]


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"version":1,"kept":{"x":3}}', b"[" * 100_000])
def test_an_index_that_is_not_one_is_made_again(folder: Path, content: bytes) -> None:
    (folder / INDEX_FILE).write_bytes(content)
    assert len(RunsIndex(folder).refresh(LONG_S)) == 7
    assert json.loads((folder / INDEX_FILE).read_bytes())["version"] == 1


def test_a_folder_that_is_missing_is_empty_and_one_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    assert RunsIndex(tmp_path / "missing").refresh(LONG_S) == ()
    (tmp_path / "file").touch()
    with pytest.raises(RunsFolderError, match=r"cannot read the runs in .*file: Not a directory"):
        RunsIndex(tmp_path / "file").refresh(LONG_S)


@pytest.mark.parametrize("content", ["", "{", '{"note": 3}', '{"tags": [""]}', '{"note": "' + "x" * 70_000 + '"}'])
def test_a_note_that_is_not_one_is_none(tmp_path: Path, content: str) -> None:
    note_path(tmp_path / "a.db").write_text(content)
    assert read_note(tmp_path / "a.db") == RunNote()


def visit(folder: Path, *paths: str, token: bool = True, root_path: str = "") -> list[httpx.Response]:
    """Return the answers of a folder's site."""
    tokens = Tokens.make(control=False)
    limits = Limits(requests_per_s=1000.0, n_burst=1000, stranger_delay_s=0.0)
    site = Site(RunsIndex(folder), ServerSettings(port=PORT, limits=limits, root_path=root_path), tokens)

    async def ask() -> list[httpx.Response]:
        headers = {"Host": HOST, "Accept": "text/html"} | ({"Authorization": f"Bearer {tokens.read}"} if token else {})
        transport = httpx.ASGITransport(app=site)
        async with httpx.AsyncClient(transport=transport, base_url=URL, headers=headers) as client:
            return [await client.get(path) for path in paths]

    try:
        return asyncio.run(ask())
    finally:
        site.stop()


ONE = "/runs/20260101-000000-one-1.db"


def test_the_list_leads_to_each_runs_own_pages_and_back(folder: Path) -> None:
    home, overview, calls, one_call, static, moved, listed = visit(
        folder,
        "/",
        f"{ONE}/",
        f"{ONE}/api/v1/calls?limit=1",
        f"{ONE}/calls/1",
        f"{ONE}/static/podium.css",
        ONE,
        "/api/v1/runs",
    )
    assert f'href="{ONE}/"' in home.text
    assert "pipe.db" in home.text
    assert overview.status_code == 200
    assert f'data-root="{ONE}"' in overview.text
    assert f'href="{ONE}/timeline"' in overview.text
    assert '<a class="ghost button" href="/"' in overview.text
    assert len(calls.json()["items"]) == 1
    assert one_call.status_code == static.status_code == 200
    assert (moved.status_code, moved.headers["location"]) == (308, f"{ONE}/")
    assert {one["state"] for one in listed.json()["items"]} == {"ended", "unreadable"}


def test_behind_a_proxy_every_link_has_its_root_path(folder: Path) -> None:
    home, overview, static = visit(
        folder, "/podium/", f"/podium{ONE}/", f"/podium{ONE}/static/podium.css", root_path="/podium"
    )
    assert f'href="/podium{ONE}/"' in home.text
    assert f'href="/podium{ONE}/timeline"' in overview.text
    assert '<a class="ghost button" href="/podium/"' in overview.text
    assert static.status_code == 200


def test_without_a_token_nothing_is_shown_or_opened(folder: Path) -> None:
    paths = ("/", "/api/v1/runs", f"{ONE}/", f"{ONE}/calls/1", f"{ONE}/api/v1/calls", f"{ONE}/healthz", "/runs/x.db/")
    assert [one.status_code for one in visit(folder, *paths, token=False)] == [401] * len(paths)


@pytest.mark.parametrize("file", ["missing.db", "notes.txt", "..%2Fx.db", "%2e%2e", "x%00.db", "folder.db", "pipe.db"])
def test_only_run_files_of_the_folder_can_be_named(folder: Path, file: str) -> None:
    (answer,) = visit(folder, f"/runs/{file}/")
    assert answer.status_code == 404


def test_a_damaged_file_is_refused_by_name_and_the_others_are_shown(folder: Path) -> None:
    damaged, sound = visit(folder, "/runs/foreign.db/", f"{ONE}/pools")
    assert (damaged.status_code, sound.status_code) == (503, 200)
    assert "not a Podium run file" in damaged.text


def test_no_more_than_a_few_runs_are_open_at_once(folder: Path, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.db").write_bytes((folder / "20260101-000000-one-1.db").read_bytes())
    tokens = Tokens.make(control=False)
    site = Site(RunsIndex(tmp_path), ServerSettings(port=PORT), tokens)

    async def ask() -> list[int]:
        headers = {"Host": HOST, "Authorization": f"Bearer {tokens.read}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=site), base_url=URL, headers=headers) as client:
            return [(await client.get(f"/runs/{number % 10}.db/pools")).status_code for number in range(12)]

    try:
        assert asyncio.run(ask()) == [200] * 12
        assert site.runs.files == tuple(f"{number % 10}.db" for number in range(4, 12))
    finally:
        site.stop()
