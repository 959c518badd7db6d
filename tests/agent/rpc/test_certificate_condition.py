"""What a Node says of its agent's certificates: weeks before anybody is refused, and until new files are there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from agent.rpc.tls import CERTIFICATE_PROBLEM, certificate_condition
from cocoonstack.node.v1 import node_resources_pb2 as pb
from cocoonstack.node.v1.node_resources_pb2_grpc import NodeResourcesStub
from common.tls_following import FollowedTlsFiles
from devenv.cocoon_programs import AgentProcess
from tests.support import pki
from tests.support.waiting import wait_for_async

NODE = "host-1"
REQUEST = pb.GetNodeResourcesRequest()


@pytest.fixture
def tls(tmp_path: Path) -> pki.TlsDirectory:
    return pki.TlsDirectory(tmp_path / "tls")


@pytest.mark.parametrize(
    ("name", "begins", "ends", "status", "reason", "words"),
    [
        (NODE, -1, 90, False, "CertificateHolds", "holds until"),
        (NODE, -400, 13, True, "CertificateRunsOut", "Soon nobody can connect"),
        (NODE, -9, -1, True, "CertificateUnusable", "it ran out at"),
        (NODE, 1, 90, True, "CertificateUnusable", "it holds only from"),
        ("host-2", -1, 90, True, "CertificateUnusable", "(host-2) do not contain the node's name host-1"),
    ],
)
def test_every_kind_of_certificate(
    tls: pki.TlsDirectory, name: str, begins: int, ends: int, status: bool, reason: str, words: str
) -> None:
    authority = pki.authority()
    tls.trust(authority)
    tls.use(pki.issue(authority, name, begins_in_days=begins, ends_in_days=ends))
    told = certificate_condition(FollowedTlsFiles(tls.files), NODE, time.time())
    assert (told.type, told.status, told.reason) == (CERTIFICATE_PROBLEM, status, reason)
    assert words in told.message


def test_files_that_are_broken_while_the_last_good_ones_hold(tls: pki.TlsDirectory) -> None:
    """F22."""
    authority = pki.authority()
    tls.trust(authority)
    tls.use(pki.issue(authority, NODE))
    followed = FollowedTlsFiles(tls.files)
    tls.certificate.write_bytes(tls.certificate.read_bytes()[:100])
    followed.look()
    told = certificate_condition(followed, NODE, time.time())
    assert (told.status, told.reason) == (True, "TlsFilesBroken")
    assert str(tls.certificate) in told.message
    assert "the last good ones hold until" in told.message


async def test_the_report_says_so_and_new_files_end_it(
    agent_process: Callable[..., AgentProcess], tls: pki.TlsDirectory
) -> None:
    """Nothing but the files changes: nobody connects anew, and storage is read once only."""
    authority = pki.authority()
    tls.trust(authority)
    tls.use(pki.issue(authority, NODE, begins_in_days=-400, ends_in_days=5))
    settings = tls.agent_settings() | {"COCOON_NODE_STORAGE_REFRESH_SECONDS": "0"}
    agent = await asyncio.to_thread(agent_process, settings, NODE)
    viewer = pki.issue(authority, pki.VIEWER)
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), viewer.key, viewer.certificate)
    async with grpc.aio.secure_channel(
        agent.address, credentials, options=[("grpc.ssl_target_name_override", NODE)]
    ) as channel:

        async def reason() -> str:
            report = (await NodeResourcesStub(channel).GetNodeResources(REQUEST, timeout=20)).report
            (told,) = [each for each in report.conditions if each.type == CERTIFICATE_PROBLEM]
            return told.reason

        assert await reason() == "CertificateRunsOut"
        assert "TLS files have to be replaced" in (agent.directory / "agent.log").read_text()
        tls.use(pki.issue(authority, NODE))

        async def is_mended() -> bool:
            return await reason() == "CertificateHolds"

        await wait_for_async(is_mended, 60, what="the condition of the new certificate")


def test_without_certificates_there_is_no_such_condition(agent_process: Callable[..., AgentProcess]) -> None:
    agent = agent_process(None, NODE)
    with grpc.insecure_channel(agent.address) as channel:
        report = NodeResourcesStub(channel).GetNodeResources(REQUEST, timeout=20).report
    assert CERTIFICATE_PROBLEM not in {each.type for each in report.conditions}
