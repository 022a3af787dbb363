"""What does a client's JSON say? Nothing may be said twice in two ways."""

from __future__ import annotations

import json
from typing import Any

from swift_backend.errors import InvalidRequest
from swift_backend.request_keys import shown


def read_json(name: str, text: str) -> Any:
    """The value of a JSON text; InvalidRequest, with the input's name, where it is none or contradicts itself."""

    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if not same(values.setdefault(key, value), value):
                both = f"{shown(values[key])} and {shown(value)}"
                raise InvalidRequest(key[:80], f"{key[:80]} is given twice in {name} with different values: {both}")
        return values

    try:
        return json.loads(text, object_pairs_hook=as_object)
    except RecursionError:
        raise InvalidRequest(name, f"{name} is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(name, f"{name} is not valid JSON: {error}") from None


def read_json_object(name: str, text: str) -> dict[str, Any]:
    """The same where only an object will do."""
    value = read_json(name, text)
    if not isinstance(value, dict):
        raise InvalidRequest(name, f"{name} must be a JSON object, got {type(value).__name__}")
    return value


def same(one: Any, other: Any) -> bool:
    """Equality that tells true from 1, and knows that NaN is itself."""
    return one is other or (bool(one == other) and isinstance(one, bool) == isinstance(other, bool))
