"""Which endpoint URLs are refused before anything is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import endpoint_url


@pytest.mark.parametrize(
    "url",
    [
        "https://abc.lambda-url.eu-west-1.on.aws/",
        "https://host:8443/path?x=1",
        "https://10.0.0.1/",
        "https://[::1]:443/",
    ],
)
def test_accepted(url: str) -> None:
    """HTTPS URLs with a host, and a port if any, are fine."""
    assert endpoint_url.fault(url, allow_http=False) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "file:///etc/passwd",
        "//x",
        "https://",
        "https:///x",
        "https://u@x",
        "https://u:p@x",
        "https://:p@x",
        "https://x:0",
        "https://x:",
        "https://x:65536",
        "https://x:abc",
        "https://[::1",
        "https://x/#f",
        "https://x/#",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://0177.0.0.1/",
        "https://1.2.3.4./",
        "https://x /",
        "https://x\r\nHost: y/",
        "https://ex\u0430mple.com/",
    ],
)
def test_refused(url: str) -> None:
    """Odd schemes, user info, bad ports, odd numbers and unprintable characters are refused with or without HTTP."""
    assert endpoint_url.fault(url, allow_http=True)
    assert endpoint_url.fault(url, allow_http=False)


def test_plain_http_has_to_be_allowed() -> None:
    """http:// is refused unless the endpoint allows it."""
    assert endpoint_url.fault("http://x/", allow_http=False)
    assert endpoint_url.fault("http://x/", allow_http=True) is None


@pytest.mark.parametrize(
    ("url", "loopback"),
    [("http://localhost:1", True), ("http://127.9.9.9", True), ("http://[::1]/", True), ("https://x", False)],
)
def test_loopback(url: str, loopback: bool) -> None:
    """Only this machine's own names and addresses are loopback."""
    assert endpoint_url.is_loopback(url) is loopback


@given(st.text(max_size=50), st.booleans())
def test_any_text_is_judged(url: str, allow_http: bool) -> None:
    """No text makes the judgement fail, and a refusal never quotes a long part of the URL."""
    found = endpoint_url.fault("https://" + url, allow_http=allow_http)

    assert found is None or found.endswith((".", ")."))
