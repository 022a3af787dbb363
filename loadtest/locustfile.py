"""Load on a server that runs: `locust -f loadtest/locustfile.py --host grpc://localhost:8001`, or http://localhost:8000.

Locust runs everything in greenlets of one thread. That goes well with the sync client over gRPC, which must be told
before its first channel (below), and over HTTP. It does not mix with AsyncSwiftClient: asyncio and gevent each want
the thread for themselves. tritonclient's own gRPC streams need a thread each, which gevent turns into greenlets, too.
"""

# Before the first channel, and before anything that makes one: it cannot be done later.
import grpc.experimental.gevent as grpc_gevent

grpc_gevent.init_gevent()

import logging  # noqa: E402
import signal  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
from locust import events  # noqa: E402
from swift_client import SwiftClientError  # noqa: E402

from loadtest.load.shapes import SHAPES  # noqa: E402
from loadtest.load.thresholds import add_options, thresholds_of  # noqa: E402
from loadtest.load.users import Course, StreamingUser, Traffic, withdraw  # noqa: E402
from loadtest.load.web_tab import add_tab  # noqa: E402
from loadtest.load.workloads import WORKLOADS  # noqa: E402
from swift_backend.errors import InvalidRequest  # noqa: E402
from swift_backend.request_keys import SPECULATION_MODES  # noqa: E402

__all__ = ["Course", "StreamingUser"]
DEFAULT_HOST = "grpc://localhost:8001"
_log = logging.getLogger(__name__)


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    add = parser.add_argument
    add("--workload", choices=list(WORKLOADS), default="mixed", help="what users ask")
    add("--dataset", default="", help="prompts of these files instead: FILE.jsonl,FILE.jsonl")
    add("--prompt-format", choices=("chat", "raw"), default="chat", help="raw: for models without a chat template")
    add("--shape", choices=list(SHAPES), default="constant", help="how many users there are over time")
    add("--prompt-seed", type=int, default=0, help="fixes the order of the prompts of each user")
    add("--max-tokens", type=int, default=None, help="of an answer; the workload's if left out")
    add("--speculation", choices=SPECULATION_MODES, default="auto")
    add("--record", default="", include_in_web_ui=False, help="write each request as a line of JSON to this file")
    add_options(parser)


@events.init.add_listener
def _begin(environment: Any, **_: Any) -> None:
    environment.host = environment.host or DEFAULT_HOST
    environment.swift_traffic = None
    try:
        Traffic(environment.parsed_options, environment.host).close()
    except (InvalidRequest, OSError, ValueError) as error:
        _log.error("%s", error)
        raise SystemExit(2) from None
    gevent.signal_handler(signal.SIGTERM, withdraw, environment)
    if environment.web_ui:
        add_tab(environment.web_ui, lambda: environment.swift_traffic.summary() if environment.swift_traffic else None)


@events.test_start.add_listener
def _started(environment: Any, **_: Any) -> None:
    """With the options as they are now: the web page may have changed them, and shows this log."""
    if environment.swift_traffic is not None:
        environment.swift_traffic.close()
        environment.swift_traffic = None
    try:
        environment.swift_traffic = Traffic(environment.parsed_options, environment.host)
        environment.swift_traffic.connect()
    except SwiftClientError as error:
        _log.error("%s", error)  # users will find out, too: their requests are counted as failed
    except (InvalidRequest, OSError, ValueError) as error:
        _log.error("nobody asks anything: %s", error)


@events.quitting.add_listener
def _judge(environment: Any, **_: Any) -> None:
    """The exit code is that of the thresholds, and not Locust's, for which any failure is one; ours to mend are 2."""
    traffic = environment.swift_traffic
    if traffic is None:
        return
    broken = thresholds_of(environment.parsed_options).broken(traffic.summary())
    for sentence in broken:
        _log.error("threshold: %s", sentence)
    environment.process_exit_code = 2 if environment.runner.exceptions else int(bool(broken))
    traffic.close()
