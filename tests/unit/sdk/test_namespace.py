"""The public namespace is exact, and importing it loads nothing that talks."""

import subprocess
import sys

import endpoint_sdk
from endpoint_sdk import errors


def test_all_is_sorted_and_exact() -> None:
    """Every public name exists and is listed; nothing else is public."""
    modules = {name for name in vars(endpoint_sdk) if f"endpoint_sdk.{name}" in sys.modules}
    imported = {"Any", "Final", "TYPE_CHECKING", "importlib"}
    public = {name for name in dir(endpoint_sdk) if not name.startswith("_")} - modules - imported

    assert sorted(endpoint_sdk.__all__) == endpoint_sdk.__all__
    assert public | {"task", "workflow"} == set(endpoint_sdk.__all__)
    assert all(getattr(endpoint_sdk, name) is not None for name in endpoint_sdk.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy namespace refuses what it does not have."""
    assert not hasattr(endpoint_sdk, "Nothing")


def test_import_loads_no_client_of_anything() -> None:
    """Importing the SDK and declaring a workflow loads neither TLS, HTTP, pydantic nor an event loop."""
    program = """
import sys, endpoint_sdk
@endpoint_sdk.task
def charge(cents: int) -> int: return cents
@endpoint_sdk.workflow("order")
async def order(run: endpoint_sdk.Run) -> int: return await run.task(charge, 1)
heavy = {"asyncio", "ssl", "http.client", "pydantic", "boto3", "httpx", "cryptography", "concurrent.futures.thread"}
print(sorted(heavy & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_every_error_has_a_code_of_its_own() -> None:
    """Codes tell the public errors apart, and the tree in the docstring names each."""
    tree = errors.__doc__ or ""
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)]
    codes = [each.default_code for each in classes if issubclass(each, errors.PointsmanError)]

    assert len(set(codes)) == len(codes)
    assert all(each.__name__ in tree for each in classes)
