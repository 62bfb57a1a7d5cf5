"""Limits every party applies; sizes in bytes, counts in pieces."""

from typing import Final

MAX_BODY: Final = 8 * 1024 * 1024
MAX_PAYLOAD: Final = 1024 * 1024
MAX_EVENT: Final = 256 * 1024
MAX_HEADERS: Final = 16 * 1024
MAX_ANSWER: Final = 64 * 1024
MAX_NAME: Final = 200
MAX_TAGS: Final = 20
MAX_TAG: Final = 256
MAX_RECORDS: Final = 10_000
MAX_UNREAD: Final = 10_000
"""Events in the mailbox of a run that nobody has been handed."""
MAX_CHILDREN: Final = 10_000
MAX_BATCH: Final = 500
MAX_PREVIEW: Final = 200
MAX_WAIT_MS: Final = 20_000
MAX_PROGRESS: Final = 4 * 1024 * 1024
GRANT_RECORDS: Final = 1_000
GRANT_BYTES: Final = 4 * 1024 * 1024
MAX_CLAIMS: Final = 100
POLL_BYTES: Final = 6 * 1024 * 1024
MAX_QUEUES: Final = 5_000
MAX_POLL_ID: Final = 69
MAX_QUEUE_KEY: Final = 2_500
