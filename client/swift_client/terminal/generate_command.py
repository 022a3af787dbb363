"""swift-generate: a prompt on stdin, its answer on stdout."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from swift_client.core.errors import Cancelled, SwiftClientError
from swift_client.core.results import Completion
from swift_client.sync_stream import Stream
from swift_client.terminal.exit_codes import BROKEN_PIPE, CODES, EXPLANATION, code_of_end, code_of_error
from swift_client.terminal.options import add_options, client_of, sampling_of
from swift_client.transports.protocol import Transport


def main(argv: Sequence[str] | None = None, transport: Transport | None = None) -> int:
    """The command; transport: instead of the URL's."""
    parser = argparse.ArgumentParser(
        "swift-generate", description=__doc__, epilog=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--chat", action="store_true", help="the prompt is a chat message, not raw text")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text, also for an error")
    arguments = parser.parse_args(argv)
    try:
        client, options = client_of(arguments, transport), _prompt_and_sampling(arguments)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    with client:
        return _answer(client.stream(**options), as_json=arguments.json)


def result_of(completion: Completion) -> dict[str, Any]:
    """What --json prints."""
    rate, speed = completion.speculation.acceptance_rate, completion.timing.tokens_per_second
    result = asdict(completion)
    result["speculation"]["acceptance_rate"] = rate
    result["timing"]["tokens_per_second"] = speed
    return result


def _prompt_and_sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """One line end at the prompt's end is the shell's, not the prompt's."""
    sampling, prompt = sampling_of(arguments), sys.stdin.read().removesuffix("\n")
    if not arguments.chat and arguments.system is None:
        return {"prompt": prompt, **sampling}
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return {"messages": [*system, {"role": "user", "content": prompt}], **sampling}


def _answer(stream: Stream, as_json: bool) -> int:
    try:
        with stream:
            for chunk in stream:
                if not as_json:
                    print(chunk.text, end="", flush=True)
            completion = stream.result()
            print(json.dumps(result_of(completion), ensure_ascii=False) if as_json else "", flush=True)
            return code_of_end(completion.finish_reason)
    except SwiftClientError as error:
        _complain(error, as_json)
        return code_of_error(error)
    except KeyboardInterrupt:
        return CODES[Cancelled]
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _complain(error: SwiftClientError, as_json: bool) -> None:
    kind, field = type(error).__name__, getattr(error, "field", "")
    if as_json:
        print(json.dumps({"error": kind, "message": error.message, "field": field, "request_id": error.request_id}))
    else:
        print(f"\nerror: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
