"""How does an answer look while it comes?"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from swift_client.core.results import Chunk
from swift_client.sync_stream import Stream

DRAFTED, VERIFIED, STATUS = "green", "", "dim"
LEGEND = Text.assemble(
    ("drafted and accepted", DRAFTED),
    "; ",
    ("the rest", VERIFIED),
    " the full model's own. Where a chunk's tokens cannot be told apart, the whole of it is coloured",
)


class Page:
    """What is shown of one answer. With show_drafts its text is as it came, coloured by provenance."""

    def __init__(self, show_drafts: bool) -> None:
        self._show_drafts = show_drafts
        self._coloured = Text()
        self._plain = ""

    def add(self, chunk: Chunk) -> None:
        """One more chunk."""
        for text, style in coloured(chunk):
            self._coloured.append(text, style)
        self._plain += chunk.text

    def render(self, stream: Stream) -> RenderableType:
        """The answer so far, above its status line."""
        body: RenderableType = self._coloured if self._show_drafts else Markdown(self._plain)
        return Group(body, Text(status_line(stream), STATUS))


def coloured(chunk: Chunk) -> list[tuple[str, str]]:
    """A chunk's text in pieces, each with its style.

    A round yields what was accepted of its draft and one token of the full model. So which tokens were drafted is
    known where a chunk is one round; and which text is theirs, where the chunk has the texts of its tokens (logprobs).
    """
    drafted, texts = chunk.accepted_draft_tokens, [one.token for one in chunk.logprobs]
    one_round = len(texts) - drafted <= 1  # without the full model's own, where a draft ended the answer
    if drafted and one_round and "".join(texts) == chunk.text:
        return [("".join(texts[:drafted]), DRAFTED), ("".join(texts[drafted:]), VERIFIED)]
    return [(chunk.text, DRAFTED if drafted else VERIFIED)]


def status_line(stream: Stream) -> str:
    """Tokens per second, time to the first token, acceptance, and how it ended."""
    timing, drafts = stream.timing, stream.speculation
    parts = [f"{timing.tokens} tokens", f"{timing.tokens_per_second:.1f} tokens/s"]
    parts += [f"first after {timing.first_token_seconds:.2f} s"]
    parts += [f"{drafts.accepted_draft_tokens} of {drafts.draft_tokens} drafts accepted ({drafts.acceptance_rate:.0%})"]
    return " · ".join([*parts, *([stream.finish_reason] if stream.finish_reason else [])])
