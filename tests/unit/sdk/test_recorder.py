"""endpoint_sdk.recorder: one request at a time, in order, sharing where it can."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from endpoint_sdk import calls
from endpoint_sdk.errors import RecordRefused
from endpoint_sdk.exchange import Abandoned
from endpoint_sdk.recorder import Recorder
from endpoint_sdk.wire import child_messages, limits, messages


def record(name: str, value: bytes = b"1") -> messages.RecordIn:
    return messages.RecordIn("task", name, "h", 0, "ended", "completed", 1, msgspec.Raw(value))


class Sender:
    """Acknowledges when told; notes what was sent, and that nothing overlaps."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.sizes: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0
        self.refuse: set[str] = set()
        self.error: BaseException | None = None

    async def __call__(self, encoded: Sequence[bytes]) -> calls.Refused | None:
        names = [msgspec.json.decode(each)["name"] for each in encoded]
        self.sent.append(names)
        self.sizes.append(sum(len(each) for each in encoded))
        self.under_way += 1
        assert self.under_way == 1
        await self.gate.wait()
        self.under_way -= 1
        if self.error is not None:
            raise self.error
        return calls.Refused("record_conflict", "no") if self.refuse & set(names) else None


async def nobody(encoded: Sequence[bytes]) -> calls.Refused | Sequence[child_messages.StartedChild]:
    """No child is started here."""
    raise AssertionError(encoded)


async def _let_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_write_returns_when_it_is_acknowledged() -> None:
    """A result becomes visible only after its record is safe."""
    sender = Sender()
    sender.gate.clear()
    write = asyncio.create_task(Recorder(sender, nobody).write(record("a")))
    await _let_run()
    assert not write.done()

    sender.gate.set()
    await write


async def test_records_completed_meanwhile_share_the_next_request() -> None:
    """Order is that of the calls, and never two requests at once."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    sender.gate.clear()
    writes = [asyncio.create_task(recorder.write(record("a")))]
    await _let_run()
    writes += [asyncio.create_task(recorder.write(record(name))) for name in "bcd"]
    await _let_run()
    sender.gate.set()
    await asyncio.gather(*writes)

    assert sender.sent == [["a"], ["b", "c", "d"]]


async def test_a_request_holds_at_most_a_hundred_records() -> None:
    """A burst is split."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    await asyncio.gather(*(recorder.write(record(f"r{number}")) for number in range(250)))

    assert [len(names) for names in sender.sent] == [100, 100, 50]


async def test_a_request_stays_below_four_mebibytes() -> None:
    """Large values are split over several requests, each within the limit."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    value = b'"' + b"x" * 1_000_000 + b'"'
    await asyncio.gather(*(recorder.write(record(f"r{number}", value)) for number in range(9)))

    assert sum(len(names) for names in sender.sent) == 9
    assert max(sender.sizes) < limits.MAX_PROGRESS


async def test_one_refused_record_does_not_fail_the_others() -> None:
    """A shared request that is refused is repeated record by record."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    sender.refuse = {"b"}
    results = await asyncio.gather(*(recorder.write(record(name)) for name in "abc"), return_exceptions=True)

    assert [type(result) for result in results] == [type(None), RecordRefused, type(None)]
    assert sender.sent == [["a", "b", "c"], ["a"], ["b"], ["c"]]


async def test_a_cancelled_writer_leaves_its_record_to_be_written() -> None:
    """What the record says has happened; whoever waited for it may be gone."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    sender.gate.clear()
    writes = [asyncio.create_task(recorder.write(record(name))) for name in "ab"]
    await _let_run()
    for write in writes:
        write.cancel()
    await asyncio.gather(*writes, return_exceptions=True)
    sender.gate.set()
    await recorder.idle()

    assert sender.sent == [["a", "b"]]


async def test_a_write_given_up_ends_all_that_follow() -> None:
    """After an outcome that will never be known, nothing more is written in that run."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    sender.error = Abandoned()

    async def attempt(name: str) -> bool:
        try:
            await recorder.write(record(name))
        except Abandoned:
            return True
        return False

    assert all(await asyncio.gather(attempt("a"), attempt("b")))
    assert await attempt("c")
    with pytest.raises(Abandoned):
        await recorder.idle()
    assert len(sender.sent) == 1


async def test_a_fault_of_ours_gives_up_too(caplog: pytest.LogCaptureFixture) -> None:
    """An error nobody foresaw leaves no writer waiting for ever."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    sender.error = KeyError("bug")
    with pytest.raises(Abandoned):
        await recorder.write(record("a"))

    assert "could not be sent" in caplog.text


async def test_stopping_cuts_off_what_is_under_way() -> None:
    """A lost claim's write is not waited for."""
    sender = Sender()
    recorder = Recorder(sender, nobody)
    sender.gate.clear()

    async def attempt() -> str:
        try:
            await recorder.write(record("a"))
        except Abandoned:
            return "abandoned"
        return "written"

    write = asyncio.create_task(attempt())
    await _let_run()
    await recorder.stop()

    assert await write == "abandoned"
    assert asyncio.all_tasks() == {asyncio.current_task()}


def start(index: int, data: bytes = b"1") -> child_messages.ChildStart:
    return child_messages.ChildStart("child", f"w{index}", "1", "h", 0, msgspec.Raw(data))


async def test_records_and_starts_keep_the_order_of_the_calls() -> None:
    """Each request is of one kind; neighbours of a kind share one, and every caller gets its own answers."""
    sent: list[list[str]] = []

    async def send(encoded: Sequence[bytes]) -> None:
        sent.append([msgspec.json.decode(each)["name"] for each in encoded])

    async def begin(encoded: Sequence[bytes]) -> Sequence[child_messages.StartedChild]:
        names = [msgspec.json.decode(each)["workflow"] for each in encoded]
        sent.append(names)
        return [child_messages.StartedChild(f"run_{name}") for name in names]

    recorder = Recorder(send, begin)
    first, _, second, third, _ = await asyncio.gather(
        recorder.start([start(1), start(2)]),
        recorder.write(record("a")),
        recorder.start([start(3)]),
        recorder.start([start(4)]),
        recorder.write(record("b")),
    )

    assert sent == [["w1", "w2"], ["a"], ["w3", "w4"], ["b"]]
    assert [[child.id for child in each] for each in (first, second, third)] == [
        ["run_w1", "run_w2"],
        ["run_w3"],
        ["run_w4"],
    ]


@pytest.mark.parametrize(("count", "data", "requests"), [(501, b"1", [500, 1]), (5, b"1" * 1_000_000, [4, 1])])
async def test_a_request_starts_at_most_five_hundred_children_and_four_mebibytes(
    count: int, data: bytes, requests: list[int]
) -> None:
    """A burst is split."""
    sent: list[int] = []

    async def begin(encoded: Sequence[bytes]) -> Sequence[child_messages.StartedChild]:
        sent.append(len(encoded))
        return [child_messages.StartedChild("run_1") for _ in encoded]

    recorder = Recorder(Sender(), begin)
    await asyncio.gather(*(recorder.start([start(index, data)]) for index in range(count)))

    assert sent == requests
