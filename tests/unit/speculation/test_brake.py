"""When `auto` drafts and when it leaves it."""

from __future__ import annotations

from swift_backend.speculation.brake import FIRST_PAUSE, LONGEST_PAUSE, PROBE_ROUNDS, Brake

DRAFT, VERIFY = 0.3, 0.1  # seconds: a draft must bring three tokens to break even


def rounds(brake: Brake, accepted: int, count: int) -> str:
    """d for a drafting round, - for a plain one."""
    made = ""
    for _ in range(count):
        made += "d" if brake.released else "-"
        brake.note_round(accepted if brake.released else 0, DRAFT if brake.released else 0.0, VERIFY)
    return made


def test_drafting_goes_on_while_it_pays() -> None:
    assert rounds(Brake(), accepted=4, count=50) == "d" * 50


def test_at_break_even_the_margin_decides_against_it() -> None:
    assert rounds(Brake(), accepted=3, count=4) == "ddd-"


def test_a_failed_trial_pauses_and_the_next_pause_is_longer() -> None:
    made = rounds(Brake(), accepted=1, count=PROBE_ROUNDS + 16 + 1 + 32 + 1 + 64 + 1 + 128 + 1 + 128 + 1)
    expected = "d" * PROBE_ROUNDS + "".join("-" * pause + "d" for pause in (16, 32, 64, 128, 128))
    assert made == expected
    assert (FIRST_PAUSE, LONGEST_PAUSE) == (16, 128)


def test_a_change_of_text_brings_drafting_back() -> None:
    """TensorRT-LLM's threshold switches off for good (reference §7.28)."""
    brake = Brake()
    rounds(brake, accepted=0, count=PROBE_ROUNDS + FIRST_PAUSE)
    made = rounds(brake, accepted=5, count=300)
    assert "d" * 100 in made
    assert brake.pause == FIRST_PAUSE


def test_a_draft_that_stops_at_once_still_costs() -> None:
    brake = Brake()
    for _ in range(PROBE_ROUNDS):
        brake.note_round(0, 0.01, 0.1)
    assert not brake.released


def test_a_round_in_which_others_forbade_a_draft_is_no_trial() -> None:
    """Its nothing accepted would brake a request that was never allowed to show what it can."""
    brake = Brake()
    for _ in range(PROBE_ROUNDS + 5):
        brake.note_round(0, 0.0, VERIFY, may_draft=False)
    assert brake == Brake()
    assert rounds(brake, accepted=4, count=50) == "d" * 50


def test_a_pause_passes_while_others_forbid_drafts_too() -> None:
    brake = Brake()
    assert rounds(brake, accepted=0, count=PROBE_ROUNDS) == "ddd"
    for _ in range(FIRST_PAUSE):
        assert not brake.released
        brake.note_round(0, 0.0, VERIFY, may_draft=False)
    assert brake.released
