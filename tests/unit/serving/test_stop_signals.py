import os
import signal
import threading

import pytest

from swift_backend.serving.stop_signals import STOP_SIGNALS, stop_signals_held, stop_signals_interrupt


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_each_interrupts_even_if_it_was_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), stop_signals_interrupt():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_held_signals_arrive_afterwards():
    steps = []
    with pytest.raises(KeyboardInterrupt), stop_signals_interrupt():
        with stop_signals_held():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("done")
        steps.append("not reached")
    assert steps == ["done"]


def test_another_thread_has_nothing_to_hold():
    def hold() -> None:
        with stop_signals_held():
            held.append(True)

    held: list[bool] = []
    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert held == [True]
