import json
import shlex

from swift_backend.serving.endpoints import Endpoints
from swift_backend.serving.paste_lines import curl_lines, paste_text, python_example

AT = Endpoints("0.0.0.0", 9000, 9001, 9002)


def test_curl_lines_hold_valid_json_for_the_right_ports():
    whole, stream = (shlex.split(line) for line in curl_lines(AT))
    assert whole[:4] == ["curl", "-s", "http://127.0.0.1:9000/v2/models/swift/generate", "-d"]
    assert stream[:4] == ["curl", "-sN", "http://127.0.0.1:9000/v2/models/swift/generate_stream", "-d"]
    assert json.loads(whole[4]) == {"text_input": "The swift is a bird that", "max_tokens": 48}
    assert json.loads(stream[4])["stream"] is True


def test_the_python_example_compiles_with_the_right_port():
    program = python_example(AT)
    compile(program, "example", "exec")
    assert 'InferenceServerClient("127.0.0.1:9001")' in program
    assert 'parameters={"max_tokens": 48}' in program


def test_everything_is_in_the_text():
    text = paste_text(AT)
    for part in (*curl_lines(AT), python_example(AT), "curl -s http://127.0.0.1:9002/metrics"):
        assert part in text
