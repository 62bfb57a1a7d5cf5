"""Codecs of annotations that name pydantic models."""

import dataclasses
from typing import Annotated, Any, Literal

import pytest

from endpoint_sdk import ConfigurationError, PayloadError, codec


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


def test_pydantic_models_are_found_inside_other_classes() -> None:
    """A dataclass's or Struct's field that is a model is validated by pydantic, wherever it lies."""
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Card", number=(str, ...))
    holder: Any = dataclasses.make_dataclass("Holder", [("cards", _list_of(model))])
    made = codec.for_annotation(holder, "task 't'")

    assert made.decode(made.encode(holder([model(number="4")]), "result"), "result") == holder([model(number="4")])
    with pytest.raises(PayloadError, match="is not what its annotation says"):
        made.decode(b'{"cards":[{}]}', "result")


def test_pydantic_models_go_by_their_aliases() -> None:
    """What is recorded is what the model's own JSON is, as its API would show it."""
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Card", number=(str, pydantic.Field(alias="cardNumber")))
    made = codec.for_annotation(model, "task 't'")

    assert made.encode(model(cardNumber="4"), "result") == b'{"cardNumber":"4"}'
    assert made.decode(b'{"cardNumber":"4"}', "result") == model(cardNumber="4")


def test_pydantic_constraints_are_kept() -> None:
    """`Annotated[int, Field(gt=0)]` is pydantic's as well, though int is not."""
    pydantic = pytest.importorskip("pydantic")
    made = codec.for_annotation(Annotated[int, pydantic.Field(gt=0)], "task 't'")

    with pytest.raises(PayloadError, match="greater than 0"):
        made.decode(b"0", "result")


def test_a_pydantic_union_that_would_come_back_as_another_model_is_refused() -> None:
    """Two models of one shape need a discriminator; with one, each comes back as itself."""
    pydantic = pytest.importorskip("pydantic")
    yes: Any = pydantic.create_model("Yes", by=(str, ...))
    no: Any = pydantic.create_model("No", by=(str, ...))
    plain = codec.for_annotation(_list_of(yes | no), "task 't'")

    with pytest.raises(PayloadError, match=r"holds No at \$\[1\], which comes back as Yes: give the union a discrim"):
        plain.encode([yes(by="ana"), no(by="bo")], "result")

    left: Any = pydantic.create_model("Left", kind=(Literal["left"], "left"))
    right: Any = pydantic.create_model("Right", kind=(Literal["right"], "right"))
    told = codec.for_annotation(Annotated[left | right, pydantic.Field(discriminator="kind")], "task 't'")
    assert told.decode(told.encode(right(), "result"), "result") == right()


def test_a_refusal_of_pydantic_names_the_place_and_not_the_value() -> None:
    """What was sent is a payload, and has no place in a message."""
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Card", cents=(int, ...))

    with pytest.raises(PayloadError, match=r"\$\.cents: Input should be a valid integer") as refused:
        codec.for_annotation(model, "task 't'").decode(b'{"cents":"4111-1111"}', "result")
    assert "4111" not in str(refused.value)


def test_a_pydantic_model_in_an_argument_is_its_json_form() -> None:
    """Arguments are recorded by value, whatever they are annotated with."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Card", number=(str, ...))

    assert codec.to_json({"card": model(number="4")}, "arguments", order="sorted") == b'{"card":{"number":"4"}}'


def test_what_pydantic_would_write_as_asterisks_is_refused_at_once() -> None:
    """A SecretStr, bare or in a model or a model's model, would be lost; one with a serializer of its own is not."""
    pydantic = pytest.importorskip("pydantic")
    login: Any = pydantic.create_model("Login", password=(pydantic.SecretStr, ...))
    outer: Any = pydantic.create_model("Outer", logins=(_list_of(login), ...))
    holder: Any = dataclasses.make_dataclass("Holder", [("login", login)])

    for annotation in (pydantic.SecretStr, login, outer, holder):
        with pytest.raises(ConfigurationError, match="writes a secret as asterisks"):
            codec.for_annotation(annotation, "task 't'")

    shown = pydantic.PlainSerializer(lambda secret: secret.get_secret_value(), return_type=str)
    frank: Any = pydantic.create_model("Frank", password=(Annotated[pydantic.SecretStr, shown], ...))
    made = codec.for_annotation(frank, "task 't'")
    assert made.decode(made.encode(frank(password="x"), "result"), "result").password.get_secret_value() == "x"
