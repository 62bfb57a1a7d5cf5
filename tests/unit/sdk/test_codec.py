"""Codecs make the round trip, and say what does not fit and where."""

import dataclasses
import enum
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_sdk import ConfigurationError, PayloadError, codec

if TYPE_CHECKING:
    from fractions import Fraction


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    label: str | None = None


class Receipt(msgspec.Struct):
    id: str
    lines: list[Point]


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    fast: bool


@attrs.define
class Address:
    street: str
    since: date | None = None


@dataclasses.dataclass(slots=True)
class Slotted:
    shown: int
    _kept: int = 0


@dataclasses.dataclass
class Approved:
    by: str


@dataclasses.dataclass
class Rejected:
    by: str


class Shipped(msgspec.Struct, tag=True):
    parcel: str


class Lost(msgspec.Struct, tag=True):
    parcel: str


class Level(enum.IntEnum):
    LOW = 1


T = TypeVar("T")
OrderId = NewType("OrderId", str)


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]
    next: int | None = None


@dataclasses.dataclass
class Tree:
    leaves: "list[Tree]"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(json_values)
def test_unannotated_values_make_the_round_trip(value: Any) -> None:
    """Builtins come back equal."""
    plain = codec.for_annotation(Any, "task 't'")

    assert plain.decode(plain.encode(value, "result"), "result") == value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Receipt, Receipt("r", [Point(1.5), Point(2.0, "b")])),
        (dict[str, Point], {"a": Point(0.0)}),
        (Colour, Colour.RED),
        (Pair, Pair(1, "r")),
        (Options, {"fast": True}),
        (datetime, datetime(2026, 12, 1, tzinfo=UTC)),
        (date, date(2026, 12, 1)),
        (timedelta, timedelta(hours=1)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (dict[int, str], {1: "a"}),
        (int | None, None),
        (None, None),
        (float, 1.0),
        (Address, Address("Main St", date(2026, 1, 1))),
        (Slotted, Slotted(1, 2)),
        (list[Address | None], [None, Address("Main St")]),
        (Approved | Rejected, Rejected("ana")),
        (dict[str, list[Approved | Rejected | None]], {"a": [Approved("ana"), None, Rejected("bo")]}),
        (tuple[Approved, Approved | Rejected], (Approved("ana"), Approved("bo"))),
        (Approved | Address | int, Address("Main St")),
        (Shipped | Lost, Lost("p1")),
        (Page[Address], Page([Address("Main St")], 2)),
        (Page[Approved] | Rejected, Page([Approved("ana")])),
        (Tree, Tree([Tree([])])),
        (Literal["a", 1], "a"),
        (Level, Level.LOW),
        (OrderId, OrderId("o1")),
        (dict[UUID, Decimal], {UUID(int=7): Decimal("1E+3")}),
        (dict[Colour, dict[date, int]], {Colour.RED: {date(2026, 1, 1): 1}}),
        (int, 2**70),
        (timedelta, timedelta(days=-3, microseconds=7)),
    ],
)
def test_annotated_values_come_back_as_annotated(annotation: Any, value: Any) -> None:
    """The decoded value has the type that was annotated, on the first run as on replay."""
    made = codec.for_annotation(annotation, "task 't'")
    seen = made.decode(made.encode(value, "result"), "result")

    assert seen == value
    assert type(seen) is type(value)


def test_an_unannotated_result_comes_back_as_builtins() -> None:
    """Without an annotation a dataclass is a dict at once, and keys are text."""
    plain = codec.for_annotation(Any, "task 't'")

    assert plain.decode(plain.encode({1: Point(1.0)}, "result"), "result") == {"1": {"x": 1.0, "label": None}}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_with_their_path(number: float) -> None:
    """A non-finite number names its place, inside Structs and dataclasses too."""
    value = {"receipts": [Receipt("r", [Point(1.0), Point(number)])]}

    with pytest.raises(PayloadError, match=r"NaN or infinity at \$\.receipts\[0\]\.lines\[1\]\.x"):
        codec.for_annotation(Any, "task 't'").encode(value, "result")


def test_a_value_json_cannot_carry_is_refused_with_its_type() -> None:
    """An object, a lone surrogate and a cycle are all refused the same way."""
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (object(), "\ud800", cycle, {(1, 2): 3}, 1j):
        with pytest.raises(PayloadError, match="result cannot be recorded as JSON") as refused:
            codec.for_annotation(Any, "task 't'").encode(value, "result")
        assert refused.value.code == "not_recordable"


def test_a_payload_over_the_limit_is_refused_by_name() -> None:
    """More than 1 MiB of JSON is `payload_too_large`, exactly 1 MiB is not."""
    plain = codec.for_annotation(str, "task 't'")

    assert len(plain.encode("x" * (1024 * 1024 - 2), "input of workflow 'w'")) == 1024 * 1024
    with pytest.raises(PayloadError, match="input of workflow 'w' is 1048577 bytes") as refused:
        plain.encode("x" * (1024 * 1024 - 1), "input of workflow 'w'")
    assert refused.value.code == "payload_too_large"


def test_data_that_does_not_fit_is_refused_with_its_path() -> None:
    """A value of another type says where it differs."""
    with pytest.raises(PayloadError, match=r"\$\.lines\[0\]\.x") as refused:
        codec.for_annotation(Receipt, "task 't'").decode(b'{"id":"r","lines":[{"x":"one"}]}', "result")
    assert refused.value.code == "invalid_payload"


@given(st.data())
def test_whatever_an_annotation_allows_makes_the_round_trip(data: st.DataObject) -> None:
    """Times, decimals, ids, bytes and what holds them come back equal, twice over: a replay reads what it read."""
    made = codec.for_annotation(Everything, "task 't'")
    value = data.draw(everything)

    first = made.decode(made.encode(value, "result"), "result")

    assert first == value
    assert made.encode(first, "result") == made.encode(value, "result")


@dataclasses.dataclass
class Everything:
    when: datetime
    day: date
    length: timedelta
    amount: Decimal
    id: UUID
    data: bytes
    colour: Colour
    pairs: dict[int, Pair]
    flags: set[bool]
    address: Address | None
    choice: Literal["a", "b"]


texts = st.text(st.characters(exclude_categories=["Cs"]))
everything = st.builds(
    Everything,
    when=st.datetimes(timezones=st.none() | st.just(UTC)),
    day=st.dates(),
    length=st.timedeltas(),
    amount=st.decimals(allow_nan=False, allow_infinity=False),
    id=st.uuids(),
    data=st.binary(),
    colour=st.just(Colour.RED),
    pairs=st.dictionaries(st.integers(), st.builds(Pair, st.integers(), texts)),
    flags=st.sets(st.booleans()),
    address=st.none() | st.builds(Address, texts, st.none() | st.dates()),
    choice=st.sampled_from(["a", "b"]),
)


def test_two_classes_of_a_union_are_told_apart_by_name() -> None:
    """The name of the class is in the JSON, for whoever sends such a value from another language."""
    made = codec.for_annotation(Approved | Rejected, "event 'decision'")

    assert made.encode(Rejected("ana"), "event") == b'{"type":"Rejected","value":{"by":"ana"}}'
    with pytest.raises(PayloadError, match="is not what its annotation says"):
        made.decode(b'{"by":"ana"}', "event")


@attrs.define
class Hidden:
    name: str
    _secret: str = ""


@dataclasses.dataclass
class Undecided:
    decision: Approved | Rejected


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Hidden, "field _secret of Hidden would not be recorded"),
        (list[Hidden], "field _secret of Hidden would not be recorded"),
        (dict[tuple[int, int], str], "keys of vartuple|keys of tuple"),
        (dict[bool, str], "keys of bool"),
        (Undecided, "use msgspec Structs with tag=True"),
        (str | datetime, "str-like"),
        (dict[str, object], "object cannot be recorded as JSON; say Any"),
    ],
)
def test_what_would_be_lost_or_mixed_up_is_refused_at_once(annotation: Any, words: str) -> None:
    """Fields msgspec does not see, keys that are no text, and unions JSON cannot tell apart have no codec."""
    with pytest.raises(ConfigurationError, match=words):
        codec.for_annotation(annotation, "task 't'")


@pytest.mark.parametrize("annotation", [object, complex, list[complex], "Fraction | None", dict[str, type]])
def test_an_annotation_json_cannot_carry_is_refused_at_once(annotation: Any) -> None:
    """A codec that could only fail later is not made."""
    if isinstance(annotation, str):
        from fractions import Fraction

        annotation = Fraction | None
    with pytest.raises(ConfigurationError, match="task 't'"):
        codec.for_annotation(annotation, "task 't'")


def test_an_unresolvable_annotation_names_symbol_task_and_linter() -> None:
    """A type imported under TYPE_CHECKING only is named, with the linter setting that keeps its import."""

    def half(x: "Fraction") -> "Fraction":
        return x / 2

    with pytest.raises(ConfigurationError, match=r"task 'half': its return annotation names 'Fraction'.*runtime-eval"):
        codec.annotation_of(half, "return", "task 'half'")


def test_only_the_asked_annotation_is_resolved() -> None:
    """A parameter's type under TYPE_CHECKING does no harm: parameters are not decoded."""

    def count(x: "Fraction") -> "int":
        return int(x)

    assert codec.annotation_of(count, "return", "task 'count'") is int
