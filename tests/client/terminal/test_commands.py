"""swift-chat and swift-generate, with a script for a server and a string for a terminal."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from swift_client import FakeTransport, InvalidRequest, Pause, QueueFull, ServerError, SwiftClientError, fake_response
from swift_client.core.results import Chunk, TokenLogprob
from swift_client.terminal import chat_command, generate_command
from swift_client.terminal.exit_codes import CODES, EXPLANATION, code_of_end, code_of_error
from swift_client.terminal.rendering import DRAFTED, VERIFIED, coloured

from tests.client.wire_servers import Behaviour, HttpServer

CLIENT = Path(__file__).resolve().parents[3] / "client"
ANSWER = [
    fake_response("**Swifts** ", [1, 2], drafted=2, accepted=0),
    fake_response("fly fast", [3, 4, 5], "stop", drafted=4, accepted=2),
]


def chat(lines: list[str], transport: FakeTransport, *argv: str) -> str:
    """What the terminal shows; a KeyboardInterrupt in a line is one."""
    said = iter(lines)

    def read_line(prompt: str) -> str:
        line = next(said, None)
        if line is None:
            raise EOFError
        if line == "^C":
            raise KeyboardInterrupt
        return line

    screen = io.StringIO()
    console = Console(file=screen, width=100, color_system=None, force_terminal=False)
    assert chat_command.main(list(argv), transport, console, read_line) == 0
    return screen.getvalue()


def messages(transport: FakeTransport, turn: int) -> list[dict[str, str]]:
    sent: list[dict[str, str]] = json.loads(str(transport.requests[turn].inputs["messages"]))
    return sent


def test_a_chat_remembers_and_forgets() -> None:
    transport = FakeTransport(ANSWER)
    shown = chat(["hello", "and?", "/system be brief", "/reset", "again", "/system", "once more"], transport)
    assert "Swifts fly fast" in shown and "**" not in shown
    assert "5 tokens" in shown and "tokens/s" in shown and "first after" in shown
    assert "2 of 4 drafts accepted (50%) · stop" in shown
    turn = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "**Swifts** fly fast"}]
    assert messages(transport, 0) == turn[:1]
    assert messages(transport, 1) == [*turn, {"role": "user", "content": "and?"}]
    assert messages(transport, 2) == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "again"}]
    assert [one["role"] for one in messages(transport, 3)] == ["user", "assistant", "user"]


def test_settings_and_commands() -> None:
    transport = FakeTransport(ANSWER)
    lines = ["/set temperature 0.7", '/set stop ["a"]', "/set top_p 0.5", "/set top_p", "/set", "/set timeout 3",
             "hello", "/stats", "/help", "/what", "^C", "", "/quit", "never"]  # fmt: skip
    shown = chat(lines, transport, "--max-tokens", "9", "--set", "speculation=off", "--system", "x")
    assert json.loads(str(transport.requests[0].inputs["sampling_parameters"])) == {
        "max_tokens": 9, "speculation": "off", "temperature": 0.7, "stop": ["a"],
    }  # fmt: skip
    assert messages(transport, 0)[0] == {"role": "system", "content": "x"}
    for expected in ("temperature is 0.7", "top_p is the server's default", "temperature 0.7, stop ['a']",
                     "timeout is no sampling key", "1 answer, 5 tokens in", "2 of 4 drafted tokens accepted (50%)",
                     "there is no /what", "Ctrl-D or /quit leaves", "/reset           forget"):  # fmt: skip
        assert expected in shown
    assert len(transport.requests) == 1


def test_an_error_is_one_line_and_no_turn() -> None:
    transport = FakeTransport([InvalidRequest("temperature must be in [0, 5], got 9", field="temperature")], ANSWER)
    shown = chat(["hello", "again"], transport)
    assert "InvalidRequest: temperature must be in [0, 5], got 9 (request " in shown
    assert messages(transport, 1) == [{"role": "user", "content": "again"}]


def test_drafts_are_coloured() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=100, color_system="standard", force_terminal=True)
    chat_command.main(["--show-drafts"], FakeTransport(ANSWER), console, iter_lines(["hello"]))
    assert "\x1b[32mfly fast\x1b[0m" in screen.getvalue() and "**Swifts** \x1b[32m" in screen.getvalue()


def test_drafted_tokens_are_coloured_where_they_can_be_told_apart() -> None:
    def chunk(text: str, tokens: Sequence[str], accepted: int) -> Chunk:
        logprobs = tuple(TokenLogprob(1, -0.5, token) for token in tokens)
        return Chunk(text, (1,) * len(tokens), accepted_draft_tokens=accepted, logprobs=logprobs)

    assert coloured(chunk("a b c", ["a", " b", " c"], 2)) == [("a b", DRAFTED), (" c", VERIFIED)]
    assert coloured(chunk("a b", ["a", " b"], 2)) == [("a b", DRAFTED), ("", VERIFIED)]  # ended within a draft
    assert coloured(chunk("a", ["a"], 0)) == [("a", VERIFIED)]
    assert coloured(chunk("a b c", ["a", " b", " c"], 1)) == [("a b c", DRAFTED)]  # two rounds: which is which?
    assert coloured(chunk("a", ["a", " b"], 1)) == [("a", DRAFTED)]  # some text is held back
    assert coloured(chunk("a b", [], 1)) == [("a b", DRAFTED)]


def test_only_who_wants_colours_asks_for_tokens() -> None:
    for options, expected in ((["--show-drafts"], 0), ([], None), (["--show-drafts", "--set", "logprobs=2"], 2)):
        transport = FakeTransport(ANSWER)
        chat(["hello"], transport, *options)
        sent = json.loads(str(transport.requests[0].inputs.get("sampling_parameters", "{}")))
        assert sent.get("logprobs") == expected


def iter_lines(lines: list[str]) -> object:
    said = iter(lines)

    def read_line(prompt: str) -> str:
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    return read_line


def test_ctrl_c_cancels_the_answer_and_not_the_program() -> None:
    transport = FakeTransport([fake_response("half an ", [1]), Pause(30), fake_response("x", [2], "stop")], ANSWER)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.4, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    shown = chat(["hello", "again"], transport)
    timer.join()
    assert "half an" in shown and "cancelled" in shown and "fly fast" in shown
    assert transport.stopped == [transport.requests[0].request_id]
    assert messages(transport, 1)[1] == {"role": "assistant", "content": "half an "}


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is a swift?\n"))


@pytest.mark.usefixtures("prompt")
def test_generate_writes_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    transport = FakeTransport(ANSWER)
    assert generate_command.main(["--temperature", "0.5", "--seed", "3"], transport) == 0
    assert capsys.readouterr().out == "**Swifts** fly fast\n"
    assert transport.requests[0].inputs["text_input"] == "What is a swift?"
    assert json.loads(str(transport.requests[0].inputs["sampling_parameters"])) == {"temperature": 0.5, "seed": 3}


@pytest.mark.usefixtures("prompt")
@pytest.mark.parametrize("argv", [["--chat"], ["--system", "be brief"]])
def test_generate_with_a_chat_message(argv: list[str]) -> None:
    transport = FakeTransport(ANSWER)
    generate_command.main(argv, transport)
    assert messages(transport, 0)[-1] == {"role": "user", "content": "What is a swift?"}
    assert len(messages(transport, 0)) == len(argv)


@pytest.mark.usefixtures("prompt")
def test_generate_writes_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_command.main(["--json"], FakeTransport(ANSWER)) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["text"], result["token_ids"], result["finish_reason"]) == (
        "**Swifts** fly fast",
        [1, 2, 3, 4, 5],
        "stop",
    )
    assert result["usage"] == {"prompt_tokens": 3, "completion_tokens": 5}
    assert result["speculation"] == {"draft_tokens": 4, "accepted_draft_tokens": 2, "acceptance_rate": 0.5}
    assert result["timing"]["tokens"] == 5 and result["request_id"]


@pytest.mark.usefixtures("prompt")
@pytest.mark.parametrize(
    ("steps", "argv", "code"),
    [
        ([ServerError("x")], [], 1),
        ([InvalidRequest("x", field="seed")], ["--json"], 2),
        ([QueueFull("x")], ["--timeout", "0.05"], 3),
        ([Pause(9)], ["--timeout", "0.1"], 4),
        ([fake_response("a", [1], "timeout")], [], 4),
        ([fake_response("a", [1], "cancelled")], [], 130),
        ([fake_response("a", [1], "length")], [], 0),
        ([fake_response("a", [1])], [], 6),
    ],
)
def test_exit_codes(steps: list[object], argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_command.main(argv, FakeTransport(steps)) == code  # type: ignore[arg-type]
    captured = capsys.readouterr()
    if "--json" in argv:
        said = json.loads(captured.out)
        assert (said["error"], said["message"], said["field"]) == ("InvalidRequest", "x", "seed")
    elif code not in (0, 130) and not (code == 4 and "a" in captured.out):
        assert "error: " in captured.err and "(request " in captured.err


@pytest.mark.parametrize("argv", [["--url", "ftp://x"], ["--header", "x"], ["--set", "x"], ["--set", "messages=1"]])
@pytest.mark.parametrize("command", [generate_command, chat_command])
@pytest.mark.usefixtures("prompt")
def test_a_wrong_option_is_code_2(command: object, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(argv)  # type: ignore[attr-defined]
    assert caught.value.code == 2 and "error: " in capsys.readouterr().err


def test_every_error_and_every_end_has_a_code_that_is_explained() -> None:
    def kinds(kind: type[SwiftClientError]) -> Iterator[type[SwiftClientError]]:
        for child in kind.__subclasses__():
            yield child
            yield from kinds(child)

    assert {code_of_error(kind("x")) for kind in kinds(SwiftClientError)} == set(CODES.values())
    assert [code_of_end(reason) for reason in ("stop", "length", "timeout", "cancelled")] == [0, 0, 4, 130]
    explained = {int(line.split()[0]) for line in EXPLANATION.splitlines()[1:]}
    assert explained == {0, *CODES.values(), 141}


@pytest.fixture
def endless() -> Iterator[tuple[HttpServer, Behaviour]]:
    steps = [step for _ in range(2000) for step in (fake_response("word ", [1]), Pause(0.01))]
    behaviour = Behaviour([[*steps, fake_response("", [], "stop")]])
    server = HttpServer(behaviour)
    yield server, behaviour
    server.close()


def spawn(server: HttpServer) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "swift_client.terminal.generate_command", "--url", server.url]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(CLIENT)}
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"go\n")
    process.stdin.close()
    assert process.stdout.read(5) == b"word "
    return process


def test_ctrl_c_ends_generate_and_its_request(endless: tuple[HttpServer, Behaviour]) -> None:
    server, behaviour = endless
    process = spawn(server)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert process.stdout is not None
    process.stdout.close()
    assert behaviour.stops == [behaviour.requests[0]["id"]]


def test_a_reader_that_leaves_ends_generate_and_its_request(endless: tuple[HttpServer, Behaviour]) -> None:
    server, behaviour = endless
    process = spawn(server)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(10) == 141
    assert behaviour.stops == [behaviour.requests[0]["id"]]
