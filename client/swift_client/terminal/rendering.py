"""How does an answer look while it comes?"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from swift_client.core.results import Chunk
from swift_client.sync_stream import Stream

DRAFTED, VERIFIED, STATUS = "green", "", "dim"
LEGEND = Text.assemble(
    ("drafted", DRAFTED),
    " text came in chunks with accepted drafts, of which all tokens but one had been drafted; ",
    ("the rest", VERIFIED),
    " the full model made alone",
)


class Page:
    """What is shown of one answer. With show_drafts its text is as it came, coloured by chunk.

    The server tells how many tokens of a chunk had been drafted, not which: so a chunk has one colour.
    """

    def __init__(self, show_drafts: bool) -> None:
        self._show_drafts = show_drafts
        self._coloured = Text()
        self._plain = ""

    def add(self, chunk: Chunk) -> None:
        """One more chunk."""
        self._coloured.append(chunk.text, DRAFTED if chunk.accepted_draft_tokens else VERIFIED)
        self._plain += chunk.text

    def render(self, stream: Stream) -> RenderableType:
        """The answer so far, above its status line."""
        body: RenderableType = self._coloured if self._show_drafts else Markdown(self._plain)
        return Group(body, Text(status_line(stream), STATUS))


def status_line(stream: Stream) -> str:
    """Tokens per second, time to the first token, acceptance, and how it ended."""
    timing, drafts = stream.timing, stream.speculation
    parts = [f"{timing.tokens} tokens", f"{timing.tokens_per_second:.1f} tokens/s"]
    parts += [f"first after {timing.first_token_seconds:.2f} s"]
    parts += [f"{drafts.accepted_draft_tokens} of {drafts.draft_tokens} drafts accepted ({drafts.acceptance_rate:.0%})"]
    return " · ".join([*parts, *([stream.finish_reason] if stream.finish_reason else [])])
