"""Our client certificate and the authorities the agents' certificates must come from, as they are on disk now.

Why this exists: gRPC's Python client never re-reads certificates, so each new connection asks here. A file that is
broken or half written keeps the last good set and shows as `problem`.
"""

import time

import grpc

from common.certificate_life import has_run_out
from common.tls_files import TlsFiles
from common.tls_following import FollowedTlsFiles
from controller.agents.metrics import TLS_EXPIRY, TLS_FILES_BROKEN, TLS_RUNS_OUT


class ClientCredentials:
    """Channel credentials from files, made again when one of the files changed."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files now. Raises `TlsFilesError`."""
        self._followed = FollowedTlsFiles(files)
        self._made = 0
        self._credentials = self.current()

    @property
    def problem(self) -> str:
        """What is wrong with the files since the last look; empty while nothing is."""
        return self._followed.problem

    def own_problem(self) -> str:
        """Return what has run out of the files in use, so that no agent lets us in; empty while nothing has."""
        followed = self._followed
        return followed.life_problem if has_run_out(followed.contents, time.time()) else ""

    def current(self) -> grpc.ChannelCredentials:
        """Return the newest good credentials; reads files, so it belongs into a thread. Never raises."""
        followed = self._followed
        followed.look()
        generation, contents = followed.generation, followed.contents
        if generation != self._made:
            self._credentials = grpc.ssl_channel_credentials(contents.authorities, contents.key, contents.certificate)
            self._made = generation
        TLS_FILES_BROKEN.set(bool(followed.problem))
        TLS_RUNS_OUT.set(bool(followed.life_problem))
        TLS_EXPIRY.labels("certificate").set(contents.certificate_ends_at)
        TLS_EXPIRY.labels("authorities").set(contents.authorities_end_at)
        return self._credentials
