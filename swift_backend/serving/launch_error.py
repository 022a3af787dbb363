"""What stops a launch, told to a person."""

from __future__ import annotations

from swift_backend.errors import SwiftError


class LaunchError(SwiftError):
    """Serving cannot start or go on; the message is one sentence, then what to do."""
