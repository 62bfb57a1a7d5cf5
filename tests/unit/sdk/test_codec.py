"""Codecs make the round trip, and say what does not fit and where."""

import dataclasses
import enum
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from uuid import UUID

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


def _list_of(annotation: Any) -> Any:
    return list[annotation]


def test_pydantic_models_validate_in_both_directions() -> None:
    """An annotation that names a pydantic model goes through TypeAdapter, nested and in unions too."""
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Card", number=(str, ...), cents=(int, 0))
    other: Any = pydantic.create_model("Cash", cents=(int, ...))

    for annotation, value in (
        (model, model(number="4")),
        (_list_of(model | other), [other(cents=1), model(number="5")]),
    ):
        made = codec.for_annotation(annotation, "task 't'")
        assert made.decode(made.encode(value, "result"), "result") == value
    with pytest.raises(PayloadError, match="number"):
        codec.for_annotation(model, "task 't'").decode(b'{"cents":1}', "result")


def test_a_pydantic_model_in_an_argument_is_its_json_form() -> None:
    """Arguments are recorded by value, whatever they are annotated with."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Card", number=(str, ...))

    assert codec.to_json({"card": model(number="4")}, "arguments", order="sorted") == b'{"card":{"number":"4"}}'
