"""What can a user paste into a second terminal to try the server?"""

from __future__ import annotations

import sys
from pathlib import Path

from swift_backend.serving.endpoints import Endpoints

_PYTHON_EXAMPLE = """\
import queue
import numpy as np
import tritonclient.grpc as triton

def tensor(name, value, kind):
    item = triton.InferInput(name, [1], kind)
    item.set_data_from_numpy(np.array([value], dtype=object if kind == "BYTES" else bool))
    return item

answers = queue.Queue()
with triton.InferenceServerClient("{grpc_target}") as client:
    client.start_stream(lambda result, error: answers.put(error or result))
    inputs = [tensor("text_input", b"The swift is a bird that", "BYTES"), tensor("stream", True, "BOOL")]
    client.async_stream_infer("swift", inputs, parameters={{"max_tokens": 48}}, enable_empty_final_response=True)
    while True:
        answer = answers.get()
        if isinstance(answer, Exception):
            raise answer
        text = answer.as_numpy("text_output")
        print(text[0].decode() if text is not None else "", end="", flush=True)
        if answer.get_response().parameters["triton_final_response"].bool_param:
            break
print()
"""


def curl_lines(endpoints: Endpoints) -> list[str]:
    """One line for a whole answer, one for a stream."""
    model = f"{endpoints.http_url}/v2/models/swift"
    return [
        f"""curl -s {model}/generate -d '{{"text_input": "The swift is a bird that", "max_tokens": 48}}'""",
        f"""curl -sN {model}/generate_stream -d '{{"text_input": "The swift is a bird that", "stream": true, """
        """"max_tokens": 48, "temperature": 0.7}'""",
    ]


def python_example(endpoints: Endpoints) -> str:
    """A program that streams an answer over gRPC."""
    return _PYTHON_EXAMPLE.format(grpc_target=endpoints.grpc_target)


def paste_text(endpoints: Endpoints) -> str:
    """Everything at once, as the launcher prints it."""
    python = f"{_short(Path(sys.executable))} - <<'END'\n{python_example(endpoints)}END"
    return "\n\n".join([*curl_lines(endpoints), python, f"curl -s {endpoints.metrics_url} | grep nv_inference_request"])


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
