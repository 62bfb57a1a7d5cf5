"""Who may import whom: the contracts of pyproject.toml, and the allow-lists import-linter cannot say."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
# What executors have for certain is msgspec; the rest is imported inside the function that needs it.
BESIDE_STANDARD_LIBRARY = {
    "msgspec",
    "boto3",
    "botocore",
    "pydantic",
    "pytest",
    "redis",
    "snapshot_restore_py",
    "uvicorn",
    "uvloop",
}
SHARED_BY_ROUTES = {
    "publishers",
    "publishers.base",
    "publishers.discovery",
    "publishers.faults",
    "publishers.message",
    "publishers.policy",
    "publishers.post",
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("dispatcher", "endpoint_sdk", "publishers", include_external_packages=True, cache_dir=None)


def external(graph: grimp.ImportGraph, modules: set[str]) -> set[str]:
    """Packages outside this distribution and the standard library that *modules* import."""
    imported = {target for module in modules for target in graph.find_modules_directly_imported_by(module)}
    tops = {target.partition(".")[0] for target in imported}
    return tops - {"dispatcher", "endpoint_sdk", "publishers"} - sys.stdlib_module_names


def within(graph: grimp.ImportGraph, package: str) -> set[str]:
    return {package} | graph.find_descendants(package)


def test_contracts_are_kept() -> None:
    """import-linter finds no broken contract."""
    command = Path(sysconfig.get_path("scripts")) / "lint-imports"
    found = subprocess.run([str(command), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("package", ["endpoint_sdk.wire", "dispatcher.lifecycle"])
def test_pure_modules_need_msgspec_only(graph: grimp.ImportGraph, package: str) -> None:
    """The wire and the lifecycle import the standard library and msgspec, and of this project only the wire."""
    modules = within(graph, package)
    imported = {target for module in modules for target in graph.find_modules_directly_imported_by(module)}
    ours = {target for target in imported if target.startswith(("dispatcher", "endpoint_sdk", "publishers"))}

    assert external(graph, modules) <= {"msgspec"}
    assert ours <= within(graph, "endpoint_sdk.wire")


def test_sdk_needs_msgspec_only(graph: grimp.ImportGraph) -> None:
    """The SDK runs on msgspec alone: whatever else it can use is one of the named extras."""
    assert external(graph, within(graph, "endpoint_sdk")) <= BESIDE_STANDARD_LIBRARY


def test_routes_do_not_know_one_another(graph: grimp.ImportGraph) -> None:
    """A concrete publisher imports no other one."""
    concrete = within(graph, "publishers") - SHARED_BY_ROUTES
    edges = {
        (module, target)
        for module in concrete
        for target in graph.find_modules_directly_imported_by(module)
        if target in concrete
    }

    assert set() == edges
