"""The life cycle of `swift_decoder`: Triton's requests go into the engine, the responder brings the answers back."""

from __future__ import annotations

import itertools
import os
import traceback
from time import monotonic
from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.config import EngineConfig
from swift_backend.engine import Engine
from swift_backend.engine_thread import EngineThread
from swift_backend.errors import EngineFailure, SwiftError
from swift_backend.sequence import Request
from swift_backend.serving.answer import stop_arrays
from swift_backend.serving.guardian import Guardian, guard_this_stub
from swift_backend.serving.instance import fit_to_instance, num_instances
from swift_backend.serving.reply import Reply
from swift_backend.serving.reporter import Reporter
from swift_backend.serving.responder import Responder
from swift_backend.serving.siblings import Siblings
from swift_backend.serving.tensors import Call, read_call, read_flag
from swift_backend.serving.triton_errors import outcome_of, printable
from swift_backend.serving.triton_log import log_through_triton
from swift_backend.serving.triton_request import TritonRequest, engine_options

# Of the time that a stopping server allows itself, requests may use a share, less what Triton needs afterwards.
STOPPING_SHARE, STOPPING_RESERVE = 0.6, 2.0
# When the model is unloaded, open requests may go on for so long …
DRAIN_SECONDS = 5.0
# … and for a round to end, the last answers to be sent and the last figures to be published there is as much again.
STOP_SECONDS = 10.0


class TritonPythonModel:
    """What Triton's Python backend calls; initialize and execute on one thread, never at the same time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and start the threads; TritonModelException says in one sentence why that failed."""
        log_through_triton()
        self._guardian: Guardian | None = None
        try:
            config = fit_to_instance(EngineConfig.from_sources(engine_options(args)), args)
            self._responder = Responder(lambda: self._engine, _log_error)
            self._siblings = _siblings(args, self._responder) if num_instances(args) > 1 else None
            self._reporter = Reporter(enabled=config.metrics)
            self._engine_thread = EngineThread(config, self._on_engine_end, self._reporter.on_step)
            self._engine = self._engine_thread.start()
        except (SwiftError, OSError) as error:
            raise pb_utils.TritonModelException(printable(str(error))) from None
        name = args["model_name"]
        self._guardian = guard_this_stub(name, self._on_server_stopping) if config.exit_on_failure else None
        self._numbers = itertools.count(1)
        self._responder.start()
        self._reporter.start()
        pb_utils.Logger.log_info(printable(f"{name}: {_description(self._engine)}"))

    def execute(self, requests: list[Any]) -> None:
        """Pass each request on and return at once; every failure ends its own request only."""
        for request in requests:
            self._accept(request)

    def finalize(self) -> None:
        """Refuse new requests, let the running ones go on for a while, end what is left, and stop all threads."""
        deadline = monotonic() + STOP_SECONDS
        self._engine.close(DRAIN_SECONDS)
        if not self._engine_thread.join((STOP_SECONDS + DRAIN_SECONDS) / 2):
            _log_error("the engine did not stop in time; its requests are ended without it")
        if not self._responder.close(max(0.0, deadline - monotonic())):
            _log_error(f"some answers could not be sent within {STOP_SECONDS:g} s")
        self._reporter.close(max(0.0, deadline - monotonic()))
        if self._siblings is not None:
            self._siblings.close()
        if self._guardian is not None:
            self._guardian.goodbye()

    def is_ready(self) -> bool:
        """Triton's readiness probe (from 26.03 on): no engine, no service."""
        return self._engine_thread.alive

    def _accept(self, request: Any) -> None:
        inputs, reply = TritonRequest(request), Reply(str(next(self._numbers)), request.get_response_sender())
        try:
            reply.client_id = inputs.client_id()
            self._start(inputs, reply)
        except SwiftError as error:
            self._refuse(reply, error)
        except Exception as error:  # ours; raised from execute it would end the other requests of this call too
            _log_error(f"request {reply.label}: {traceback.format_exc().rstrip()}")
            self._refuse(reply, EngineFailure(f"internal error ({type(error).__name__})"))

    def _start(self, inputs: TritonRequest, reply: Reply) -> None:
        if read_flag(inputs, "stop"):
            reply.finish(stop_arrays(self._stop(reply.client_id)))
            return
        call = read_call(inputs)
        reply.stream = call.stream
        if not call.exclude_input:
            reply.prompt_text = lambda: self._prompt_text(call)
        if call.params.logprobs is not None:
            reply.token_text = self._token_text
        self._responder.open(reply)
        self._engine.submit(
            Request(reply.request_id, call.prompt_ids, call.params, self._responder.on_output, label=reply.label)
        )
        if reply.withdrawn:  # while the engine did not know it yet
            self._engine.cancel(reply.request_id)

    def _stop(self, client_id: str) -> bool:
        """Cancel the requests with this id, here or in another instance of the model."""
        found = self._responder.stop(client_id)
        return found or (bool(client_id) and self._siblings is not None and self._siblings.stop(client_id))

    def _prompt_text(self, call: Call) -> str:
        skip = call.params.skip_special_tokens
        return self._engine.tokenizer.decode(call.prompt_ids, skip_special_tokens=skip)

    def _token_text(self, token_id: int) -> str:
        return self._engine.tokenizer.decode([token_id], skip_special_tokens=False)

    def _refuse(self, reply: Reply, error: SwiftError) -> None:
        """Queue the error behind whatever was said already, so that only one thread talks to this client."""
        self._responder.open(reply)
        self._responder.fail(reply.request_id, error)
        self._reporter.refused(reply.label, outcome_of(error))

    def _on_server_stopping(self, seconds: float) -> None:
        """Triton waits for open requests, and hangs if they outlast its time limit: let them end before."""
        self._engine.close(max(0.0, STOPPING_SHARE * seconds - STOPPING_RESERVE))

    def _on_engine_end(self, engine: Engine, failure: Exception | None) -> None:
        """Whichever way the engine's thread ends, no request stays open and no new one gets in."""
        if failure is not None:
            trace = "".join(traceback.format_exception(failure)).rstrip()
            _log_error(f"the engine stopped working\n{trace}")
        self._responder.fail_open(EngineFailure("the engine has stopped"))
        if failure is not None and self._guardian is not None:
            self._guardian.stop_server()


def _description(engine: Engine) -> str:
    model, runner = engine.model, engine.runner
    shape = f"{runner.decoder.config.num_layers} layers, context {engine.context_length}"
    kernel = runner.decoder.kernel
    numerics = "invariant" if runner.decoder.kernels.invariant else "fast"
    where = f"{model.dtype} on {runner.device} by {kernel} ({numerics} numerics)"
    return f"{model.directory} in {where}, {shape}, {runner.cache.capacity} cache slots"


def _siblings(args: dict[str, str], responder: Responder) -> Siblings:
    """The other instances of the model in the same server, whose processes have the same parent.

    Containers on the host's network share its sockets, and each has a process 1: the ids' namespace tells them apart.
    """
    server = f"{os.stat('/proc/self/ns/pid').st_ino}-{os.getppid()}"
    return Siblings(f"{server}-{args['model_name']}-{args['model_version']}", responder.stop)


def _log_error(message: str) -> None:
    pb_utils.Logger.log_error(printable(message))
