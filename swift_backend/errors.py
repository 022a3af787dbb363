"""The exceptions of the server side.

SwiftError
├── ModelLoadError      weights, config or tokenizer cannot be used
├── ConfigError         an engine option is unknown or out of range
├── InvalidRequest      the client sent something wrong; carries the field
├── Unavailable         the queue is full or the server is stopping
├── Cancelled           the client or an operator withdrew the request
└── EngineFailure       the engine broke; every open request ends with it
    └── RankFailure     one of the processes that share a model has failed
"""


class SwiftError(Exception):
    """Base of everything this package raises on purpose."""


class ModelLoadError(SwiftError):
    """A model cannot be loaded; the message is one sentence that says why."""


class ConfigError(SwiftError):
    """An engine option is unknown, of the wrong type or out of range."""


class InvalidRequest(SwiftError):
    """A request is wrong; the message names the field, the value and what is allowed.

    Attributes: field, the contract's name of the input or key at fault.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message if field in message else f"{field}: {message}")
        self.field = field


class Unavailable(SwiftError):
    """No room for another request now; trying again later may work."""


class Cancelled(SwiftError):
    """The request was withdrawn before it was finished."""


class EngineFailure(SwiftError):
    """The engine itself failed; no request can be served any more."""


class RankFailure(EngineFailure):
    """A process of those that share a model has failed, and none can go on; the message names it and the cause."""
