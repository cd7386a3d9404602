"""The one kind of failure that a request may answer with: an HTTP status of the 4xx range and a text for the user."""

from __future__ import annotations

__all__ = ["RequestError"]


class RequestError(Exception):
    """Raised by anything that serves a request; turned into a response in one place, trendprobe_tb.plugin.

    Args:
        status: HTTP status, 400–499.
        code: A word that a program can compare, documented in http_api.md.
        message: What is wrong and what to do, for the user. Names databases by their ids, never by absolute paths.

    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
