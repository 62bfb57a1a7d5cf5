"""What importing the SDK costs: a Lambda function pays it at every cold start."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

HEAVY = {"ssl", "http.client", "asyncio", "boto3", "botocore", "httpx", "pydantic", "cryptography", "dispatcher"}


def loaded(statement: str) -> set[str]:
    """The modules *statement* adds in a fresh interpreter."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import endpoint_sdk",
        "from endpoint_sdk.endpoint import Endpoint",
        "from endpoint_sdk import Worker, subscribers",
    ],
)
def test_importing_the_sdk_loads_nothing_heavy(statement: str) -> None:
    """msgspec and the light half of the standard library; no TLS, no event loop, no third party."""
    modules = loaded(statement)
    foreign = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)

    assert not modules & HEAVY
    assert foreign <= {"endpoint_sdk", "msgspec", "typing_extensions", "__mp_main__"}


def test_the_test_kit_is_loaded_by_its_own_name_only() -> None:
    """It comes with nothing but msgspec and the standard library, the server not before it is asked for."""
    modules = loaded("import endpoint_sdk.testing")
    foreign = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)

    assert not {name for name in loaded("import endpoint_sdk") if name.startswith("endpoint_sdk.testing")}
    assert foreign <= {"endpoint_sdk", "msgspec", "typing_extensions", "__mp_main__"}


def test_importing_the_sdk_stays_small() -> None:
    """A ceiling on modules: who adds to it does so knowingly."""
    assert len(loaded("import endpoint_sdk")) < 140


def test_the_lambda_handler_needs_no_tls_library_of_ours() -> None:
    """asyncio loads ssl by itself; nothing heavier comes with the handler."""
    modules = loaded("import endpoint_sdk.aws_lambda, endpoint_sdk.execution, endpoint_sdk.executor")

    assert not modules & (HEAVY - {"asyncio", "ssl"})


@pytest.mark.parametrize(
    "module",
    [
        "endpoint_sdk.subscribers",
        "endpoint_sdk.subscribers.redis_sets",
        "endpoint_sdk.subscribers.sqs_queue",
        "endpoint_sdk.testing",
    ],
)
def test_a_transport_loads_its_client_when_it_is_opened(module: str) -> None:
    """Neither boto3 nor redis comes with an import, and pytest only with the suite itself."""
    modules = loaded(f"import {module}")

    assert not modules & {"boto3", "botocore", "redis", "pytest"}


@pytest.mark.skipif(not all(map(find_spec, ("boto3", "redis"))), reason="neither extra is installed here")
def test_a_subscriber_is_made_without_its_client() -> None:
    """Making one looks whether its package is there, and leaves loading it to `open`."""
    modules = loaded(
        "from endpoint_sdk import subscribers; subscribers.redis('redis://localhost'); "
        "subscribers.sqs('https://sqs.eu-west-1.amazonaws.com/1/orders')"
    )

    assert not modules & {"boto3", "botocore", "redis"}
