from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from app.cli import main
from app.cli.say import message
from app.client import Client, UnreachableError
from app.server import serve
from app.settings import ServerSettings, SettingsError, client_settings, is_loopback
from core.errors import UsageError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_loopback_host_needs_no_word_from_the_user(host: str) -> None:
    assert ServerSettings(host=host).host == host


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "127.0.0.2", "::ffff:127.0.0.1", "::", "10.0.0.5", "example.org", "", "127.0.0.1.evil.org"]
)
def test_a_host_that_others_can_reach_is_refused(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(SettingsError, match="--allow-remote"):
        ServerSettings(host=host)


def test_a_host_that_others_can_reach_is_taken_when_the_user_knows() -> None:
    assert ServerSettings(host="0.0.0.0", open_to_network=True).host == "0.0.0.0"


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(SettingsError, match=str(port)):
        ServerSettings(port=port)


def test_a_settings_error_survives_a_process_border() -> None:
    error = pickle.loads(pickle.dumps(SettingsError("no", setting="--port")))
    assert (type(error), str(error), error.setting) == (SettingsError, "no", "--port")


def test_the_client_takes_url_and_token_from_the_environment() -> None:
    found = client_settings("", None, {"PODIUM_URL": "http://127.0.0.1:8/", "PODIUM_TOKEN": "t"})
    assert (found.url, found.token) == ("http://127.0.0.1:8", "t")


def test_the_clients_token_never_shows_in_its_repr() -> None:
    assert "secret" not in repr(client_settings("http://h", None, {"PODIUM_TOKEN": "secret"}))


def test_the_clients_token_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n", encoding="utf-8")
    assert client_settings("http://h:1", tmp_path / "token", {"PODIUM_TOKEN": "other"}).token == "abc"


@pytest.mark.parametrize("url", ["http://h:1/?token=abc", "127.0.0.1:80", "file:///etc/passwd", ""])
def test_a_url_with_a_token_or_without_http_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        client_settings(url, None, {})


def test_a_token_file_that_cannot_be_read_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="token file"):
        client_settings("http://h:1", tmp_path / "none", {})


@pytest.mark.parametrize("token", ["two\nlines", "no\u20acascii"])
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    file = tmp_path / "token"
    file.write_text(token, encoding="utf-8")
    with pytest.raises(SettingsError, match="does not contain a token") as refused:
        client_settings("http://127.0.0.1:1", file, {})
    with pytest.raises(UsageError, match="invalid token") as unusable:
        Client("http://127.0.0.1:1", token)
    assert token not in str(refused.value) + str(unusable.value)


def test_a_name_that_cannot_be_is_not_reachable() -> None:
    with pytest.raises(UnreachableError, match="not a valid address"):
        Client("http://a..b:80").pools()


def test_no_message_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    message("groups are: a\x1b[31m\nb")
    assert capsys.readouterr().err == "podium: groups are: a?[31m\nb\n"


def test_the_old_names_of_allow_remote_still_work_and_warn(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(DeprecationWarning, match="allow_remote"):
        old = serve(host="10.0.0.1", i_know=True)
    assert old._web.settings.open_to_network
    assert serve(host="10.0.0.1", allow_remote=True)._web.settings.open_to_network
    assert main(["view", "--host", "10.0.0.1", "--i-know", "no-such-run.db"]) != 2
    assert "--i-know is deprecated" in capsys.readouterr().err
    assert main(["view", "--host", "10.0.0.1", "no-such-run.db"]) == 2
    assert "pass --allow-remote" in capsys.readouterr().err
