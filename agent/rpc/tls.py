"""The server's side of mutual TLS, with certificates that are read again when their files change.

Why this exists: certificates are rotated while agents run. New files take effect for new connections; open ones go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import grpc

from agent.resources.report import Condition
from common.certificate_life import utc
from common.logging import fields
from common.tls_files import TlsContents, TlsFiles
from common.tls_following import FollowedTlsFiles

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 10.0
CERTIFICATE_PROBLEM = "CocoonCertificateProblem"
_REMEDY = "put new files in place, they are read without a restart"


class ReloadingCertificates:
    """The server's credentials from files. `credentials` once; it looks at the files by itself.

    `node_name` is the name that the controller will expect in the certificate.
    """

    def __init__(self, files: TlsFiles, node_name: str) -> None:
        self._files = files
        self._node_name = node_name
        self._followed: FollowedTlsFiles | None = None
        self._served = 0

    @property
    def failed_reloads(self) -> int:
        """How often changed files could not be used."""
        return self._followed.failed_reads if self._followed else 0

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files; raises `TlsFilesError` when they cannot be used now."""
        self._followed = followed = FollowedTlsFiles(self._files)
        return grpc.dynamic_ssl_server_credentials(
            self._serve(followed),
            self._changed,  # type: ignore[arg-type]  # None, "no change", is missing from the stubs
            require_client_authentication=True,
        )

    def collect(self) -> Iterable[Metric]:
        """Return the metric families: a broken file shows here while the last good one serves."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        followed = self._followed
        if followed is None:
            return
        # Nobody may have connected since the files changed.
        followed.look()
        yield CounterMetricFamily(
            "cocoon_node_failed_tls_reloads", "Readings of changed TLS files that failed.", followed.failed_reads
        )
        yield GaugeMetricFamily(
            "cocoon_node_tls_files_broken",
            "1 while the TLS files cannot be read and the last good ones are used.",
            float(bool(followed.problem)),
        )
        ends = GaugeMetricFamily(
            "cocoon_node_tls_expiry_timestamp_seconds",
            "When the certificate in use, or the last of its authorities, runs out.",
            labels=["part"],
        )
        ends.add_metric(["certificate"], followed.contents.certificate_ends_at)
        ends.add_metric(["authorities"], followed.contents.authorities_end_at)
        yield ends
        yield GaugeMetricFamily(
            "cocoon_node_tls_runs_out_soon",
            "1 while what is in use is close to its end or beyond it.",
            float(bool(followed.life_problem)),
        )

    def conditions(self) -> Iterable[Condition]:
        """Return what the Node says of the certificates: whoever runs a fleet sees there which host is next."""
        if self._followed is not None:
            yield certificate_condition(self._followed, self._node_name, time.time())

    async def follow(self, changed: Callable[[], None]) -> None:
        """Look at the files and the clock now and then until cancelled; `changed` when the condition is another.

        While nobody connects or asks for metrics, nothing else does.
        """
        told = list(self.conditions())
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._followed is not None:
                await asyncio.to_thread(self._followed.look)
            now = list(self.conditions())
            if now != told:
                told = now
                changed()

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new certificates if there are some; called for each connection, in its thread."""
        followed = self._followed
        if followed is None:
            return None
        followed.look()
        return None if followed.generation == self._served else self._serve(followed)

    def _serve(self, followed: FollowedTlsFiles) -> grpc.ServerCertificateConfiguration:
        self._served = followed.generation
        contents = followed.contents
        if problem := certificate_problem(contents, self._node_name, time.time()):
            _LOG.warning("controllers will refuse this agent's certificate", extra=fields(problem=problem))
        return grpc.ssl_server_certificate_configuration([(contents.key, contents.certificate)], contents.authorities)


def certificate_condition(followed: FollowedTlsFiles, node_name: str, now: float) -> Condition:
    """Return the condition for the Node; its words change only when something else has to be done."""
    contents = followed.contents
    if problem := certificate_problem(contents, node_name, now):
        message = f"Controllers refuse the certificate: {problem}; {_REMEDY}."
        return Condition(CERTIFICATE_PROBLEM, True, "CertificateUnusable", message)
    if followed.life_problem:
        message = f"Soon nobody can connect: {followed.life_problem}; {_REMEDY}."
        return Condition(CERTIFICATE_PROBLEM, True, "CertificateRunsOut", message)
    ends_at = utc(min(contents.certificate_ends_at, contents.authorities_end_at))
    if followed.problem:
        message = f"The files on disk cannot be used, the last good ones hold until {ends_at}: {followed.problem}."
        return Condition(CERTIFICATE_PROBLEM, True, "TlsFilesBroken", message)
    return Condition(CERTIFICATE_PROBLEM, False, "CertificateHolds", f"The certificate holds until {ends_at}.")


def certificate_problem(contents: TlsContents, node_name: str, now: float) -> str:
    """Return why a client would refuse this certificate for this node, empty when nothing is known against it."""
    for each in contents.chain:
        if now >= each.ends_at:
            return f"it ran out at {utc(each.ends_at)}"
        if now < each.begins_at:
            return f"it holds only from {utc(each.begins_at)} on"
    names = contents.chain[0].names
    if node_name not in names:
        listed = ", ".join(sorted(names)) or "none"
        return f"its subject alternative names ({listed}) do not contain the node's name {node_name}"
    return ""
