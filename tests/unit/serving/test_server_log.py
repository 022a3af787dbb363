from swift_backend.serving.server_log import LogTail, failure_lines, forget_old_logs

LOG = """\
W1130 02:28:08.161527 5877 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
E1130 02:28:08.161974 5877 server.cc:241] "CudaDriverHelper has not been initialized."
I1130 02:28:08.163783 5877 model_lifecycle.cc:472] "loading: bad:1"
E1130 02:28:08.246756 5877 life.cc:642] "failed to load 'bad': ModuleNotFoundError\\n\\nAt:\\n  model.py(1)\\n"
Error: Failed to initialize NVML
error: creating server: Internal - failed to load all models
"""


def test_errors_that_matter_with_their_line_breaks():
    assert failure_lines(LOG) == [
        "E1130 02:28:08.246756 5877 life.cc:642] \"failed to load 'bad': ModuleNotFoundError",
        "At:",
        "  model.py(1)",
        "error: creating server: Internal - failed to load all models",
    ]


def test_the_last_ones_if_there_are_many():
    log = "".join(f"E1130 {number}\n" for number in range(50))
    assert failure_lines(log, limit=2) == ["E1130 48", "E1130 49"]


def test_without_errors_the_last_lines():
    assert failure_lines("a\nb\nc\n", limit=2) == ["b", "c"]


def test_a_tail_reads_each_byte_once(tmp_path):
    path = tmp_path / "log"
    tail = LogTail(path)
    assert tail.new_text() == ""
    path.write_text("one\n")
    assert tail.new_text() == "one\n"
    with path.open("a") as log:
        log.write("two\n")
    assert [tail.new_text(), tail.new_text()] == ["two\n", ""]


def test_only_the_newest_logs_are_kept(tmp_path):
    for number in range(25):
        (tmp_path / f"triton-{number:02}.log").touch()
    (tmp_path / "other.txt").touch()
    forget_old_logs(tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["other.txt", *(f"triton-{number:02}.log" for number in range(5, 25))]
