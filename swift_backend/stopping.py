"""When is a request finished, and what does the client get of a run of accepted tokens?"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swift_backend.sequence import Sequence


def append_until_stop(sequence: Sequence, token_ids: Iterable[int], eos_ids: Collection[int]) -> str:
    """Append tokens up to and including the first that ends the request; returns the text to emit.

    Mutates sequence.tokens and sequence.finish_reason ("stop" or "length"). Text, ids and counts end together: what
    follows the stop within an accepted run was never committed. A stop token is in the ids; its text is emitted only
    with include_stop_str_in_output.
    """
    params, pieces = sequence.params, []
    for token in token_ids:
        sequence.append(token)
        stopped = token in params.stop_token_ids or (token in eos_ids and not params.ignore_eos)
        if not stopped or params.include_stop_str_in_output:
            text, matched = sequence.text.push(token, may_stop=sequence.num_output_tokens >= params.min_tokens)
            pieces.append(text)
            if matched:
                sequence.finish_reason = "stop"
                return "".join(pieces)
        if stopped or sequence.remaining == 0:
            text, matched = sequence.text.flush()
            sequence.finish_reason = "stop" if stopped or matched else "length"
            pieces.append(text)
            break
    return "".join(pieces)
