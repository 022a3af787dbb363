"""swift-chat: a chat in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live

from swift_client.core.errors import SwiftClientError
from swift_client.core.results import Completion
from swift_client.sync_client import SwiftClient
from swift_client.terminal.conversation import Conversation
from swift_client.terminal.options import add_options, client_of, sampling_of
from swift_client.terminal.rendering import LEGEND, Page
from swift_client.transports.protocol import Transport

_REFRESH_PER_SECOND = 10


def main(
    argv: Sequence[str] | None = None,
    transport: Transport | None = None,
    console: Console | None = None,
    read_line: Callable[[str], str] = input,
) -> int:
    """The command; transport, console and read_line: instead of the URL's and the terminal's."""
    parser = argparse.ArgumentParser("swift-chat", description=__doc__)
    add_options(parser)
    parser.add_argument("--show-drafts", action="store_true", help="colour what was drafted, instead of markdown")
    arguments = parser.parse_args(argv)
    try:
        client, settings = client_of(arguments, transport), sampling_of(arguments)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    chat = _Chat(client, Conversation(arguments.system, settings), console or Console(), arguments.show_drafts)
    with client:
        chat.run(read_line)
    return 0


class _Chat:
    def __init__(self, client: SwiftClient, conversation: Conversation, console: Console, show_drafts: bool) -> None:
        self._client = client
        self._conversation = conversation
        self._console = console
        self._show_drafts = show_drafts

    def run(self, read_line: Callable[[str], str]) -> None:
        """Until the end of the input, or /quit."""
        self._console.print("/help lists the commands", style="dim", highlight=False)
        if self._show_drafts:
            self._console.print(LEGEND)
        while (line := self._read(read_line)) is not None:
            if not line.startswith("/"):
                self._say(line)
            elif (told := self._conversation.command(line)) is not None:
                self._console.print(told, style="dim", markup=False, highlight=False)
            else:
                return

    def _read(self, read_line: Callable[[str], str]) -> str | None:
        """A line with something in it, None at the end."""
        while True:
            try:
                if line := read_line("> ").strip():
                    return line
            except EOFError:
                return None
            except KeyboardInterrupt:
                self._console.print("\nCtrl-D or /quit leaves", style="dim", highlight=False)

    def _say(self, said: str) -> None:
        try:
            self._conversation.answered(said, self._answer(said))
        except SwiftClientError as error:
            self._console.print(f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False)

    def _answer(self, said: str) -> Completion:
        """Ctrl-C leaves the stream, which cancels it on the server; what came so far is the answer."""
        page = Page(self._show_drafts)
        texts_of_tokens = {"logprobs": 0} if self._show_drafts else {}
        settings = {**texts_of_tokens, **self._conversation.settings}
        stream = self._client.stream(messages=self._conversation.messages(said), **settings)
        with Live(console=self._console, refresh_per_second=_REFRESH_PER_SECOND, vertical_overflow="visible") as live:
            try:
                with stream:
                    for chunk in stream:
                        page.add(chunk)
                        live.update(page.render(stream))
            except KeyboardInterrupt:
                pass
            live.update(page.render(stream))
        if not self._console.is_terminal:
            self._console.print()
        return stream.result()


if __name__ == "__main__":
    sys.exit(main())
