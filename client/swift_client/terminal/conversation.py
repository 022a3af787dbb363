"""What has been said in a chat, and with which settings does it go on? No terminal here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swift_client.core.results import Completion
from swift_client.core.sampling import Message
from swift_client.terminal.options import checked_key, value_of

HELP = """\
/set KEY VALUE   a sampling key, as in /set temperature 0.7; without a value, the server's default
/system TEXT     the system message; without a text, none
/reset           forget what was said
/stats           what this chat took so far
/help            this
/quit            leave (or Ctrl-D); Ctrl-C cancels an answer"""


@dataclass(slots=True)
class Totals:
    """What the answers took together."""

    answers: int = 0
    tokens: int = 0
    seconds: float = 0.0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0

    def add(self, answer: Completion) -> None:
        """One more."""
        self.answers += 1
        self.tokens += answer.usage.completion_tokens
        self.seconds += answer.timing.seconds
        self.draft_tokens += answer.speculation.draft_tokens
        self.accepted_draft_tokens += answer.speculation.accepted_draft_tokens

    def __str__(self) -> str:
        speed = self.tokens / self.seconds if self.seconds else 0.0
        rate = self.accepted_draft_tokens / self.draft_tokens if self.draft_tokens else 0.0
        drafts = f"{self.accepted_draft_tokens} of {self.draft_tokens} drafted tokens accepted ({rate:.0%})"
        answers = "1 answer" if self.answers == 1 else f"{self.answers} answers"
        return f"{answers}, {self.tokens} tokens in {self.seconds:.1f} s ({speed:.1f} tokens/s); {drafts}"


@dataclass(slots=True)
class Conversation:
    """A chat: turns, settings and totals."""

    system: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    turns: list[Message] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

    def messages(self, said: str) -> list[Message]:
        """What to send for the next turn."""
        system: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.turns, {"role": "user", "content": said}]

    def answered(self, said: str, answer: Completion) -> None:
        """Keep a turn, cut short or not; one without an answer never was."""
        self.totals.add(answer)
        if answer.text:
            self.turns += [{"role": "user", "content": said}, {"role": "assistant", "content": answer.text}]

    def command(self, line: str) -> str | None:
        """Do what a line with a slash says; what to tell the user, None to leave."""
        name, _, rest = line[1:].partition(" ")
        rest = rest.strip()
        if name in ("quit", "exit"):
            return None
        if name == "reset":
            self.turns.clear()
            return "forgotten"
        if name == "system":
            self.system = rest or None
            return f"system message: {self.system or 'none'}"
        if name == "set":
            return self._set(rest)
        if name == "stats":
            return str(self.totals)
        return HELP if name == "help" else f"there is no /{name}\n{HELP}"

    def _set(self, rest: str) -> str:
        key, _, value = rest.partition(" ")
        if not key:
            return ", ".join(f"{name} {value}" for name, value in self.settings.items()) or "nothing is set"
        if value.strip():
            try:
                self.settings[checked_key(key)] = value_of(value.strip())
            except ValueError as error:
                return str(error)
            return f"{key} is {self.settings[key]!r}"
        self.settings.pop(key, None)
        return f"{key} is the server's default"
