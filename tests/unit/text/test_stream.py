"""From committed tokens to emitted text: what the detokeniser and the search for stop strings make together."""

from __future__ import annotations

from swift_backend.params import SamplingParams
from swift_backend.text.stream import TextStream
from tests.unit.text.kinds import byte_fallback


def test_a_stop_string_may_be_complete_in_what_was_held_back() -> None:
    """Byte tokens are held until their run ends, which may be the end of the answer."""
    tokenizer = byte_fallback()
    [newline] = [token for token, byte in tokenizer.byte_values.items() if byte == 10]
    stream = TextStream(tokenizer, [], SamplingParams(stop=("\n",)))
    word, *_ = tokenizer.encode("test", add_special_tokens=False)
    text, matched = stream.push(word)
    more, matched = stream.push(newline)
    assert not matched
    rest, matched = stream.flush()
    assert matched
    assert "\n" not in text + more + rest
