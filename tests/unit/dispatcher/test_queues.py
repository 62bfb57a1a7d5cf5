"""Queue keys: one key per queue, and back."""

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.queues import Queue

queues = st.builds(Queue, *[st.text(st.characters(codec="utf-8"), max_size=30)] * 4)


@given(queues)
def test_key_round_trip(queue: Queue) -> None:
    """Every queue is the one its key names."""
    assert Queue.from_key(queue.key()) == queue


@given(queues, queues)
def test_keys_are_distinct(one: Queue, other: Queue) -> None:
    """Two queues share a key only if they are the same."""
    assert (one.key() == other.key()) == (one == other)


@given(queues)
def test_keys_are_plain(queue: Queue) -> None:
    """A key is ASCII with exactly three colons, whatever the names hold."""
    assert queue.key().isascii()
    assert queue.key().count(":") == 3


def test_key_encodes_each_part() -> None:
    """Colons, slashes and spaces inside a name do not look like separators."""
    assert Queue("a:b", "c/d", "1 0", "é").key() == "a%3Ab:c%2Fd:1%200:%C3%A9"
