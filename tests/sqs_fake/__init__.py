"""A strict SQS over HTTP for boto3, for what moto gets wrong, with faults to inject and a clock that tests move.

    with SqsFake() as fake:                      # or the fixture `sqs_fake`, which also sets boto3's environment
        url = fake.sqs.queue(fifo=True)          # a tests.brokers.Sqs: .client, .queue(), .receive(), .drain()
        fake.advance(31)                         # 31 s pass: holds end, long polls wake
        fake.faults.lose_reply("SendMessageBatch")           # performed, and the connection closes without an answer
        fake.faults.fail("*", "AccessDenied", 403, times=2)  # not performed
        fake.faults.fail_entries("SendMessageBatch", "InternalError", times=3)  # the next 3 entries land in Failed[]
        fake.faults.hang("ReceiveMessage")       # performed, and not answered until fake.release() or stop()
        fake.faults.lose(2)                      # the next 2 messages are accepted and vanish
        fake.faults.duplicate(2)                 # the next 2 messages to a standard queue are stored twice
        fake.faults.reorder = True               # standard queues hand out the newest first
        fake.down(); fake.up()                   # nobody listens; the same port, the same messages
        fake.stored(url)                         # the messages in the queue, held ones too
        fake.calls                               # (action, request) of every call, refused ones too

What is strict here, after AWS's documentation and issues, not measured on AWS:

- A receive makes a new handle. On a standard queue a delete with an older one succeeds and deletes nothing; a change of
  visibility with an older one is refused, with an expired one it succeeds and changes nothing. On a FIFO queue an
  expired or older handle is InvalidParameterValue for both.
- A message is held at most 12 hours from its receive; asking for more than is left is an error.
- FIFO: in order within a group, which is blocked while one of its messages is held; duplicates within 5 minutes get the
  first one's id and sequence number; no delay per message.
- Bodies of 1 byte to MaximumMessageSize of characters XML knows; 10 attributes; 10 entries and 1 MiB a batch.
- A redrive policy moves a message to its dead-letter queue when it was received maxReceiveCount times.
"""

from tests.sqs_fake.faults import Faults
from tests.sqs_fake.queues import Message, Queue, Refused
from tests.sqs_fake.server import SqsFake

__all__ = ["Faults", "Message", "Queue", "Refused", "SqsFake"]
