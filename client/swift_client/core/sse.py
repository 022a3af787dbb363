"""Where do the events of a text/event-stream begin and end? Bytes in, data out, however the bytes are cut."""

from __future__ import annotations

import codecs

from swift_client.core.errors import ProtocolError

# An event holds one response; a server that sends no line end must not fill the memory.
MOST_CHARACTERS = 64 * 2**20


class EventParser:
    """Fed with bytes, it gives the data of each event that is complete.

    >>> parser = EventParser()
    >>> parser.feed(b'data: {"a"'), parser.feed(b': 1}\\n\\ndata: 2\\n\\n')
    ([], ['{"a": 1}', '2'])
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""
        self._after_return = False
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[str]:
        """Raises ProtocolError where it is no text."""
        return self._take(self._decode(data, last=False))

    def end(self) -> list[str]:
        """What an event that nobody closed holds; Triton closes all of its own."""
        return self._take(self._decode(b"", last=True) + "\n\n")

    def _decode(self, data: bytes, last: bool) -> str:
        try:
            return self._decoder.decode(data, last)
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the event stream is no UTF-8: {error.reason}") from None

    def _take(self, text: str) -> list[str]:
        if self._after_return and text:  # a line end may be cut in two
            text = text.removeprefix("\n")
            self._after_return = False
        if text.endswith("\r"):
            self._after_return = True
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events: list[str] = []
        for line in lines:
            events += self._line(self._rest + line)
            self._rest = ""
        self._rest += rest
        if len(self._rest) > MOST_CHARACTERS:
            raise ProtocolError(f"an event is longer than {MOST_CHARACTERS} characters")
        return events

    def _line(self, line: str) -> list[str]:
        if not line:
            event, self._data = "\n".join(self._data), []
            return [event] if event else []
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        elif line.startswith("{"):  # not an event at all, and what a stream must not swallow: somebody's error
            raise ProtocolError(f"the event stream holds something else: {line:.80}")
        return []
