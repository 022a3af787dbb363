"""How does a `stop` reach the instance that runs the request? Instances of one model ask each other."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable
from threading import Thread

ANSWER_SECONDS = 1.0
MOST_INSTANCES = 64
MOST_BYTES = 65536


class Siblings:
    """The other processes that serve the same model for the same server.

    Triton gives a request to any instance. Each listens on a Unix socket in the abstract namespace, so that nothing is
    left behind in the file system, under the first number that is free; only processes of the same user are heard.
    """

    def __init__(self, name: str, stop: Callable[[str], bool]) -> None:
        """name: shared by all instances of one model of one server. stop: see Responder.stop; called on a thread."""
        self._name = name
        self._stop = stop
        self._listener, self.number = self._listen()
        self._thread = Thread(target=self._serve, name="swift-siblings", daemon=True)
        self._thread.start()

    def stop(self, client_id: str) -> bool:
        """Whether another instance had requests with this id, which it then cancels."""
        others = (number for number in range(MOST_INSTANCES) if number != self.number)
        return any([self._ask(number, client_id) for number in others])

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(ANSWER_SECONDS)

    def _listen(self) -> tuple[socket.socket, int]:
        for number in range(MOST_INSTANCES):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                listener.bind(self._address(number))
            except OSError:
                listener.close()
                continue
            listener.listen()
            return listener, number
        raise OSError(f"{self._name}: more than {MOST_INSTANCES} instances")

    def _address(self, number: int) -> str:
        name = hashlib.sha256(self._name.encode()).hexdigest()  # an address has room for 107 bytes
        return f"\0swift-{name}-{number}"

    def _ask(self, number: int, client_id: str) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.settimeout(ANSWER_SECONDS)
            asking.connect(self._address(number))
            asking.sendall(client_id.encode()[:MOST_BYTES])
            return asking.recv(1) == b"1"
        return False

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError, UnicodeDecodeError), asking:
                asking.settimeout(ANSWER_SECONDS)
                if _user_of(asking) == os.getuid():
                    found = self._stop(asking.recv(MOST_BYTES).decode())
                    asking.sendall(b"1" if found else b"0")


def _user_of(peer: socket.socket) -> int:
    """The user id of the process at the other end."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little")
