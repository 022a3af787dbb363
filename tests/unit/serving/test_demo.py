import http.server
import json
import threading
from typing import ClassVar

import pytest

from swift_backend.serving import demo
from swift_backend.serving.demo import DemoSummary, parse_event, stream_demo
from swift_backend.serving.launch_error import LaunchError

CHUNKS = [
    {"text_output": "Swifts ", "num_output_tokens": 2, "total_draft_tokens": 1, "finish_reason": ""},
    {
        "text_output": "fly.",
        "num_output_tokens": 3,
        "total_draft_tokens": 4,
        "total_accepted_draft_tokens": 3,
        "acceptance_rate": 0.75,
        "finish_reason": "stop",
    },
]


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers as /generate_stream does, from a list of (status, body) pairs."""

    script: ClassVar[list[tuple[int, str]]] = []
    bodies: ClassVar[list[dict]] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append({"path": self.path, **json.loads(body)})
        status, answer = self.script[len(self.bodies) - 1]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        """Silent."""


@pytest.fixture
def server():
    Scripted.bodies.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Scripted) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def as_stream(*events: dict) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


def test_a_chat_answer_is_printed_and_counted(server, capsys, monkeypatch):
    monkeypatch.setattr(Scripted, "script", [(200, as_stream(*CHUNKS))])
    summary = stream_demo(server)
    assert capsys.readouterr().out == "Swifts fly.\n"
    assert (summary.tokens, summary.drafted, summary.accepted) == (5, 4, 3)
    assert (summary.acceptance_rate, summary.finish_reason) == (0.75, "stop")
    assert 0 < summary.first_token_seconds <= summary.seconds
    (body,) = Scripted.bodies
    assert body["path"] == "/v2/models/swift/generate_stream"
    assert (body["stream"], body["max_tokens"]) == (True, 48)
    assert json.loads(body["messages"]) == [{"role": "user", "content": demo.DEMO_PROMPT}]


def test_a_model_without_chat_template_gets_the_bare_prompt(server, monkeypatch):
    monkeypatch.setattr(Scripted, "script", [(400, "no chat template"), (200, as_stream(*CHUNKS))])
    stream_demo(server)
    assert Scripted.bodies[1]["text_input"] == demo.DEMO_PROMPT
    assert "messages" not in Scripted.bodies[1]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([(200, as_stream({"error": "stub is not healthy"}))], "answered with an error: stub is not healthy"),
        ([(400, "first"), (400, "no such model")], "no such model"),
        ([(200, "")], "streamed nothing"),
        ([(503, as_stream({"error": "busy"}))], "answered with an error: busy"),
        ([(500, "broken")], "answered with HTTP 500: broken"),
        ([(200, "data: {broken\n\n")], "answered with something else than JSON: {broken"),
    ],
)
def test_no_answer_is_an_error(server, monkeypatch, script, message):
    monkeypatch.setattr(Scripted, "script", script)
    with pytest.raises(LaunchError, match=message):
        stream_demo(server)


def test_lines_without_data():
    assert parse_event("") is None
    assert parse_event(": comment") is None
    assert parse_event('data:{"a": 1}') == {"a": 1}


def test_the_summary_in_words():
    text = str(DemoSummary(48, 2.0, 0.25, 40, 30, 0.75, "length"))
    assert text == (
        "48 tokens in 2.00 s (24.0 tokens/s, first after 0.25 s), finish reason length; "
        "30 of 40 drafted tokens accepted (75%)"
    )


def test_the_command_without_a_server(capsys):
    assert demo.main(["--http-port", "1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: http://127.0.0.1:1/v2/models/swift/generate_stream does not answer")
    assert "Is `make serve` running?" in error


def test_the_command_with_one(server, capsys, monkeypatch):
    monkeypatch.setattr(Scripted, "script", [(200, as_stream(*CHUNKS))])
    assert demo.main(["--http-port", server.rpartition(":")[2]]) == 0
    assert "3 of 4 drafted tokens accepted (75%)" in capsys.readouterr().out
