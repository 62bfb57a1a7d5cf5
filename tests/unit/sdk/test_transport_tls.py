"""Both transports over TLS."""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from endpoint_sdk import transport
from endpoint_sdk.transport import AsyncTransport, BlockingTransport
from tests.unit.sdk.peer import OK
from tests.unit.sdk.transports import sending


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key; needs what the dispatcher's lock has, not the SDK's."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    cert, key = folder / "cert.pem", folder / "key.pem"
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    cert.write_bytes(made.public_bytes(Encoding.PEM))
    key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert, key


async def test_https(tmp_path: Path) -> None:
    """Over TLS, trusted peers are answered on kept connections; unknown ones and other names are refused."""
    cert, key = certificate(tmp_path)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(cert, key)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)
        writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=theirs)
    port = server.sockets[0].getsockname()[1]
    ours = ssl.create_default_context(cafile=str(cert))
    quick, slow, untrusting = AsyncTransport(tls=ours), BlockingTransport(tls=ours), AsyncTransport()
    url = f"https://localhost:{port}/"
    for send in (quick.request, sending(slow), quick.request, sending(slow)):
        assert (await send("GET", url, {}, connect_address="127.0.0.1")).body == b"ok"
    for client, other in ((untrusting, url), (quick, f"https://elsewhere.invalid:{port}/")):
        with pytest.raises(transport.ConnectFailed) as caught:
            await client.request("GET", other, {}, connect_address="127.0.0.1")
        assert caught.value.cause == "tls"
    slow.close()
    await quick.close()
    server.close()
