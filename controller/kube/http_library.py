"""The HTTP library, imported without what it prepares for callers that bring no trust of their own.

Why this exists: when it is imported, aiohttp reads every certificate that the system trusts, a tenth of a start. All
our connectors have contexts of their own. One that had none would trust nobody: a mistake shows, and lets no peer in.
"""

import ssl

_create_default_context = ssl.create_default_context


def _trusting_nobody(*_: object, **__: object) -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


ssl.create_default_context = _trusting_nobody
try:
    import aiohttp
finally:
    ssl.create_default_context = _create_default_context

__all__ = ["aiohttp"]
