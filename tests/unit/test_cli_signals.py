"""What a script's error says about the signals that came."""

from __future__ import annotations

import os
import pickle
import signal

import pytest

from app.cli.signals import EndSignals, Terminated, code_of, is_interruption


class Ended(Exception):
    """Stands for the end of the process."""


def end_now(code: int) -> None:
    raise Ended(code)


def terminated() -> BaseException:
    """Return what a first SIGTERM raises in a script."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Terminated as error:
        return error
    raise AssertionError("SIGTERM raised nothing")


def test_an_interruption_is_told_from_an_error_and_has_a_shells_exit_code() -> None:
    assert [is_interruption(error) for error in (None, SystemExit(143), ValueError(), KeyboardInterrupt())] == [
        False,
        False,
        False,
        True,
    ]
    assert (code_of(KeyboardInterrupt()), code_of(Terminated(signal.SIGHUP))) == (130, 129)
    again = pickle.loads(pickle.dumps(Terminated(signal.SIGTERM)))
    assert (str(again), again.code) == ("terminated by SIGTERM", 143)


def test_an_exit_that_comes_out_of_ray_in_place_of_a_signals_is_the_signals() -> None:
    with EndSignals(end_now) as signals:
        assert signals.cause(exit_ := SystemExit(1)) is exit_, "no signal came"
        terminated()
        assert str(signals.cause(SystemExit(1))) == "terminated by SIGTERM"
        assert signals.cause(own := SystemExit(3)) is own, "the script chose this code after the signal"
        assert signals.cause(None) is None


def test_a_second_interruption_during_the_first_ones_cleanup_ends_at_once() -> None:
    second = KeyboardInterrupt()
    second.__context__ = ValueError()
    second.__context__.__context__ = KeyboardInterrupt()
    with EndSignals(end_now) as signals, pytest.raises(Ended) as ended:
        signals.clean_up(second)
    assert ended.value.args == (130,)
    with EndSignals(end_now) as signals:
        terminated()
        second_time = terminated()
        with pytest.raises(Ended) as ended:
            signals.clean_up(second_time)
    assert ended.value.args == (143,)


def test_a_signal_during_cleanup_ends_at_once_only_when_it_is_the_second() -> None:
    with EndSignals(end_now) as signals:
        signals.clean_up(None)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGINT)
    with EndSignals(end_now) as signals:
        signals.clean_up(KeyboardInterrupt())
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_from_before_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with EndSignals(end_now) as signals:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signals.clean_up(None)
    assert [signal.getsignal(number) for number in numbers] == before
