"""What is wrong with a config, in a few words? What transformers says of it, cut to its first sentence."""

from __future__ import annotations

# What transformers' and our own arithmetic on a malformed config ends in.
MALFORMED = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)


def reason(error: BaseException) -> str:
    """The first line of an error's text, without the list of all that was tried."""
    text = str(error).strip() or type(error).__name__
    return text.split("\n")[0].split(". Errors: ")[0]
