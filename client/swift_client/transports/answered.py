"""An exchange whose only response is here already."""

from __future__ import annotations

from swift_client.core.request import Response


class Answered:
    """For questions, which have no stream."""

    def __init__(self, response: Response) -> None:
        self._response: Response | None = response

    def receive(self) -> Response | None:
        response, self._response = self._response, None
        return response

    def abort(self) -> None:
        self._response = None

    def close(self) -> None:
        self._response = None


class AsyncAnswered:
    """The same on an event loop."""

    def __init__(self, response: Response) -> None:
        self._answered = Answered(response)

    async def receive(self) -> Response | None:
        return self._answered.receive()

    async def close(self) -> None:
        self._answered.close()
