"""Payloads only you can read: the dispatcher stores what Fernet made of them.

pointsman worker encrypted:worker     with POINTSMAN_URL, POINTSMAN_API_KEY and PAYLOAD_KEYS

Whoever starts these workflows gives its client the same codec: `Client(codec=codec)`. PAYLOAD_KEYS is one Fernet key or
several separated by spaces: the first encrypts, all decrypt. Put a new key first to rotate, and drop the old one when
the last run it encrypted is gone.
"""

import os
from dataclasses import dataclass

from cryptography.fernet import Fernet, MultiFernet

from endpoint_sdk import NonRetryableError, Run, Worker, task, workflow


class Encrypted:
    """A payload codec: bytes in, bytes out."""

    def __init__(self, *keys: str) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def encode(self, data: bytes, /) -> bytes:
        return self._fernet.encrypt(data)

    def decode(self, data: bytes, /) -> bytes:
        return self._fernet.decrypt(data)


@dataclass
class Patient:
    name: str
    complaint: str


@task
def diagnose(patient: Patient) -> str:
    if not patient.complaint:
        raise NonRetryableError(f"{patient.name} has no complaint", details={"name": patient.name})
    return f"{patient.name} has a {patient.complaint}"


@workflow("diagnosis")
async def diagnosis(run: Run, patient: Patient) -> str:
    finding = await run.task(diagnose, patient)
    return f"{finding}: {await run.wait_event('treatment')}"


codec = Encrypted(*os.environ["PAYLOAD_KEYS"].split())
worker = Worker([diagnosis], codec=codec)
