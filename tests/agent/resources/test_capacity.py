"""Every number of a Node: the contract's worked examples, and what must hold for all hosts."""

import ast
import inspect
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.resources import capacity
from agent.resources.capacity import (
    HostResources,
    Raw,
    ResourceAmount,
    StorageSpace,
    memory_overcommitted_bytes,
    quantity_text,
    resource_amounts,
)

GI = 2**30
STORAGE_TOTAL = 4096 * 1_000_000
STORAGE_AVAILABLE = 4096 * 400_000


def raw(value: int) -> Raw:
    return Raw(value, False, "/somewhere", 1.0)


def amounts(
    *,
    cpu: int = 4000,
    memory: int = GI,
    storage: int = STORAGE_TOTAL,
    space: StorageSpace | None = None,
    hugepages: Mapping[str, int] | None = None,
    reserve: int = 20,
    excludes: bool = False,
) -> dict[str, ResourceAmount]:
    host = HostResources(
        cpu=raw(cpu),
        memory=raw(memory),
        storage=raw(storage),
        storage_space=space,
        hugepages={name: raw(value) for name, value in (hugepages or {}).items()},
        pods=raw(256),
    )
    return {each.name: each for each in resource_amounts(host, reserve, memory_excludes_hugepages=excludes)}


def texts(amount: ResourceAmount) -> tuple[str, str]:
    return quantity_text(amount.name, amount.capacity), quantity_text(amount.name, amount.allocatable)


@pytest.mark.parametrize(
    ("millicores", "reserve", "expected"),
    [
        (32000, 20, ("32", "25")),
        (3100, 20, ("3100m", "2")),
        (3100, 0, ("3100m", "3")),
        (2000, 20, ("2", "1")),
        (1000, 20, ("1", "800m")),
        (1200, 20, ("1200m", "960m")),
        (32000, 0, ("32", "32")),
        (32000, 100, ("32", "0")),
        (1, 99, ("1m", "0")),
    ],
)
def test_cpu(millicores: int, reserve: int, expected: tuple[str, str]) -> None:
    assert texts(amounts(cpu=millicores, reserve=reserve)["cpu"]) == expected


@pytest.mark.parametrize(
    ("total", "reserve", "expected"),
    [
        (131927504 * 1024, 20, ("131927504Ki", "108075011276")),
        (131927504 * 1024, 0, ("131927504Ki", "131927504Ki")),
        (131927504 * 1024, 100, ("131927504Ki", "0")),
        (2**63 - 1, 20, (str(2**63 - 1), str((2**63 - 1) * 80 // 100))),
    ],
)
def test_memory(total: int, reserve: int, expected: tuple[str, str]) -> None:
    assert texts(amounts(memory=total, reserve=reserve)["memory"]) == expected


@pytest.mark.parametrize(
    ("name", "total", "expected"),
    [
        ("hugepages-1Gi", 4 * GI, ("4Gi", "3435973836")),
        ("hugepages-2Mi", 8 * GI, ("8Gi", "6871947673")),
    ],
)
def test_hugepages(name: str, total: int, expected: tuple[str, str]) -> None:
    assert texts(amounts(hugepages={name: total})[name]) == expected


@pytest.mark.parametrize(
    ("total", "space", "expected"),
    [
        (STORAGE_TOTAL, StorageSpace(STORAGE_AVAILABLE), ("4000000Ki", "1250Mi")),
        (STORAGE_TOTAL, StorageSpace(STORAGE_AVAILABLE, overlay_bytes=100_000_000), ("4000000Ki", "1358125Ki")),
        (STORAGE_TOTAL, StorageSpace(STORAGE_AVAILABLE, overlay_bytes=50_000_000), ("4000000Ki", "1350720000")),
        (STORAGE_TOTAL, StorageSpace(0), ("4000000Ki", "0")),
        (STORAGE_TOTAL, StorageSpace(STORAGE_TOTAL, overlay_bytes=5), ("4000000Ki", "3125Mi")),
        (2**40, None, ("1Ti", "879609302220")),
    ],
)
def test_storage(total: int, space: StorageSpace | None, expected: tuple[str, str]) -> None:
    assert texts(amounts(storage=total, space=space)["ephemeral-storage"]) == expected


def test_storage_explains_each_step() -> None:
    space = StorageSpace(STORAGE_AVAILABLE, overlay_bytes=STORAGE_TOTAL, reclaimable_bytes=1000)
    assert amounts(space=space)["ephemeral-storage"].adjustments == (
        ("UNAVAILABLE_SPACE", STORAGE_AVAILABLE - STORAGE_TOTAL),
        ("OVERLAYS_ADDED_BACK", STORAGE_TOTAL),
        ("RETAINED_RECLAIMABLE", 1000),
        ("CAPPED_AT_CAPACITY", -STORAGE_AVAILABLE - 1000),
        ("RESERVE", -STORAGE_TOTAL // 5),
    )


def test_pods_have_no_reserve() -> None:
    pods = amounts(reserve=100)["pods"]
    assert (pods.capacity, pods.allocatable, pods.adjustments) == (256, 256, ())


@pytest.mark.parametrize(
    ("memory", "hugepages", "reserve", "excludes", "allocatable", "excess"),
    [
        (10 * GI, GI, 20, False, 8 * GI, 0),
        (10 * GI, 3 * GI, 20, False, 8 * GI, GI),
        (10 * GI, 3 * GI, 0, False, 10 * GI, 3 * GI),
        (10 * GI, 5 * GI, 20, True, 4 * GI, 0),
        (2 * GI, 3 * GI, 20, True, 0, GI),
    ],
)
def test_memory_and_hugepages(
    memory: int, hugepages: int, reserve: int, *, excludes: bool, allocatable: int, excess: int
) -> None:
    found = amounts(memory=memory, hugepages={"hugepages-2Mi": hugepages}, reserve=reserve, excludes=excludes)
    assert found["memory"].allocatable == allocatable
    assert found["memory"].capacity == memory
    assert memory_overcommitted_bytes(tuple(found.values())) == excess


SIZES = st.integers(min_value=1, max_value=2**63 - 1)
FREE = st.integers(min_value=0, max_value=2**63 - 1)


@given(
    cpu=SIZES,
    memory=SIZES,
    total=SIZES,
    free=FREE,
    overlays=FREE,
    pages=FREE,
    reserve=st.integers(0, 100),
    excludes=st.booleans(),
)
def test_what_holds_for_every_host(
    *, cpu: int, memory: int, total: int, free: int, overlays: int, pages: int, reserve: int, excludes: bool
) -> None:
    """Steps add up exactly; nothing is above its capacity or below zero."""
    space = StorageSpace(min(free, total), overlay_bytes=overlays)
    for each in amounts(
        cpu=cpu,
        memory=memory,
        storage=total,
        space=space,
        hugepages={"hugepages-2Mi": pages},
        reserve=reserve,
        excludes=excludes,
    ).values():
        assert each.raw.value + sum(step.value for step in each.adjustments) == each.allocatable
        assert 0 <= each.allocatable <= each.capacity == each.raw.value


@given(SIZES, FREE, st.integers(0, 99))
def test_a_larger_reserve_never_gives_more(total: int, free: int, reserve: int) -> None:
    space = StorageSpace(min(free, total))
    less = amounts(cpu=total, memory=total, storage=total, space=space, reserve=reserve + 1)
    more = amounts(cpu=total, memory=total, storage=total, space=space, reserve=reserve)
    assert all(less[name].allocatable <= more[name].allocatable for name in more)


@given(SIZES, st.integers(1, 2**32), st.integers(0, 100))
def test_a_larger_host_never_offers_less(total: int, extra: int, reserve: int) -> None:
    small = amounts(cpu=total, memory=total, storage=total, reserve=reserve)
    large = amounts(cpu=total + extra, memory=total + extra, storage=total + extra, reserve=reserve)
    assert all(small[name].allocatable <= large[name].allocatable for name in small)


def test_the_arithmetic_is_pure() -> None:
    """It imports the standard library and the quantities, nothing that reads a host, a clock or a log."""
    tree = ast.parse(inspect.getsource(capacity))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert modules <= {"collections.abc", "dataclasses", "typing", "common.quantity"}
