"""Errors of rows, sequences and calls."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """An error of the service or the client. proto/sortition/v1/errors.proto explains the reasons."""

    def __init__(self, message: str, code: str = "UNKNOWN", reason: str = "", field: str = "", limit: str = "",
                 retry_after: Optional[float] = None):
        super().__init__(message, code, reason, field, limit, retry_after)
        self.message = message
        self.code = code  # the name of a google.rpc.Code
        self.reason = reason  # the name of a sortition.v1.ErrorReason, or empty
        self.field = field  # path of the offending field; empty if there is none
        self.limit = limit  # the range that is accepted; empty if there is none
        self.retry_after = retry_after  # seconds, or None

    def __str__(self) -> str:
        text = self.reason or self.code
        if self.field:
            text += f" {self.field}"
        if self.limit:
            text += f" ({self.limit})"
        return f"{text}: {self.message}" if self.message else text
