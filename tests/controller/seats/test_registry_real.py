"""Against a real registry: what it answers for snapshots that are there, missing, deleted and pushed again."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from controller.seats.model import RegistryAnswer, TagDeletion
from controller.seats.registry import Registry
from devenv.snapshot_registry import PushedSnapshot, RegistryProcess, SnapshotRegistry

VM = "vk-default-web-0"


@pytest.mark.parametrize("path", ["", "/vms/prod"])
async def test_the_life_of_a_tag(tmp_path: Path, path: str) -> None:
    with RegistryProcess(tmp_path / "registry") as process:
        runtime = SnapshotRegistry(process.url + path)
        registry = Registry(process.url + path)
        assert (await registry.manifest(VM)).answer is RegistryAnswer.ABSENT
        assert await registry.delete_tag(VM) is TagDeletion.ABSENT
        for snapshot_id in ("one", "two"):
            runtime.push(VM, PushedSnapshot(snapshot_id, "life"))
            found = await registry.manifest(VM, with_snapshot_id=True)
            assert (found.answer, found.snapshot_id) == (RegistryAnswer.PRESENT, snapshot_id)
            assert runtime.find(VM) == PushedSnapshot(snapshot_id, "life")
            assert (await registry.manifest(f"{VM}-0")).answer is RegistryAnswer.ABSENT
            assert await registry.delete_tag(VM) is TagDeletion.DELETED
            assert (await registry.manifest(VM)).answer is RegistryAnswer.ABSENT
            assert runtime.find(VM) is None
        process.stop()
        assert (await registry.manifest(VM)).answer is RegistryAnswer.UNKNOWN
        await registry.aclose()
        runtime.close()


async def test_another_tag_and_another_artifact_are_no_hibernate_snapshot(tmp_path: Path) -> None:
    image = b'{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}'
    headers = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
    with RegistryProcess(tmp_path / "registry") as process:
        registry = Registry(process.url)
        async with httpx.AsyncClient(base_url=process.url, trust_env=False) as client:
            (await client.put(f"/v2/{VM}/manifests/latest", content=image, headers=headers)).raise_for_status()
            assert (await registry.manifest(VM)).answer is RegistryAnswer.ABSENT
            (await client.put(f"/v2/{VM}/manifests/hibernate", content=image, headers=headers)).raise_for_status()
        found = await registry.manifest(VM)
        assert found.answer is RegistryAnswer.UNKNOWN
        assert "no VM snapshot" in found.why
        await registry.aclose()
