"""The shapes of Kubernetes names that both programs have to agree on.

Why this exists: the agent refuses to start under a name that the controller would refuse to write.
"""

import re

MAX_NODE_NAME = 63
MAX_SUBDOMAIN = 253

_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME_PART = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def is_node_name(text: str) -> bool:
    """Whether the text is an RFC 1123 subdomain of at most 63 characters: a node name is a label value too."""
    return len(text) <= MAX_NODE_NAME and _SUBDOMAIN.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether the text is an RFC 1123 subdomain of at most 253 characters, as names of pods are."""
    return len(text) <= MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_name_part(text: str) -> bool:
    """Whether the text may be a label's value, or the part after the slash of a label's or resource's name."""
    return _NAME_PART.fullmatch(text) is not None
