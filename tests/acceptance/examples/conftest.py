"""A dispatcher for the example programs of a module, and the programs as a user's process would import them."""

import importlib.util
import itertools
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from endpoint_sdk import Client, Worker
from tests.faults import rig

EXAMPLES = Path(__file__).parents[3] / "infra" / "example"
_numbers = itertools.count(1)


def imported(name: str) -> ModuleType:
    """A program of infra/example, imported anew under the environment as it is."""
    spec = importlib.util.spec_from_file_location(f"{name}_{next(_numbers)}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def http(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A dispatcher, for what the SDK's clients do not do."""
    database = tmp_path_factory.mktemp("examples") / "pointsman.db"
    shutil.copy(sqlite_template, database)
    with rig.dispatcher(f"sqlite:///{database}") as client:
        yield client


@pytest.fixture(scope="module")
def url(http: httpx.Client) -> str:
    return str(http.base_url).rstrip("/")


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with Client(url, api_key=rig.ADMIN_KEY) as connected:
        yield connected


@pytest.fixture(scope="module")
def module_environment() -> Iterator[pytest.MonkeyPatch]:
    """As monkeypatch, until the module's end."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def environment(http: httpx.Client, url: str, module_environment: pytest.MonkeyPatch) -> dict[str, str]:
    """What the environment of a worker or an endpoint holds; set in this process too."""
    made = http.post("/v1/keys", json={"name": "worker", "scopes": ["execute"]})
    assert made.status_code == 201, made.text
    values = {
        "POINTSMAN_URL": url,
        "POINTSMAN_API_KEY": made.json()["key"],
        "POINTSMAN_SIGNING_SECRET": rig.SECRET,
    }
    for name, value in values.items():
        module_environment.setenv(name, value)
    return values


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[Worker], None]]:
    """Serves a worker in a thread until the module's end."""
    with ExitStack() as stack:

        def served(worker: Worker) -> None:
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            stack.callback(thread.join, 20)
            stack.callback(worker.stop)

        yield served
