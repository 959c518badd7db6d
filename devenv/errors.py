"""The one error of the development tools: a sentence for a person, printed as a single line."""

from __future__ import annotations


class DevenvError(Exception):
    """Something the development tools need is missing or did not start; the message says what and what to do."""
