"""An input to try a workflow with, made from its type."""

import json
import sys
from typing import Any, Final

import msgspec

from endpoint_sdk import PayloadError, Workflow

_DEPTH: Final = 8
_PLAIN: Final[dict[str, Any]] = {"string": "a", "integer": 1, "number": 1.5, "boolean": True, "null": None}
_FORMATS: Final = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "1.50",
    "email": "ana@example.com",
    "uri": "https://example.com/",
}


def of(annotation: Any, workflow: Workflow[Any, Any]) -> str | None:
    """JSON that *workflow* takes for its input of type *annotation*; None where none can be made up."""
    try:
        schema = _schema(annotation)
        sample = msgspec.json.encode(_value(schema, schema.get("$defs", {}), "", 0))
        workflow.decode_input(sample)
    except (PayloadError, TypeError, ValueError, RecursionError, KeyError, NameError):
        return None
    return json.dumps(msgspec.json.decode(sample), ensure_ascii=False)


def _schema(annotation: Any) -> dict[str, Any]:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None:
        try:
            found: dict[str, Any] = pydantic.TypeAdapter(annotation).json_schema()
        except pydantic.errors.PydanticUserError:
            found = msgspec.json.schema(annotation)
        return found
    return msgspec.json.schema(annotation)


def _value(schema: dict[str, Any], known: dict[str, Any], name: str, depth: int) -> Any:
    for place in ("default", "const"):
        if place in schema:
            return schema[place]
    for place in ("examples", "enum"):
        if schema.get(place):
            return schema[place][0]
    if depth > _DEPTH:
        raise RecursionError
    if "$ref" in schema:
        return _value(known[schema["$ref"].rpartition("/")[2]], known, name, depth + 1)
    for place in ("anyOf", "oneOf", "allOf"):
        if schema.get(place):
            return _value(schema[place][0], known, name, depth + 1)
    return _typed(schema, known, name, depth)


def _typed(schema: dict[str, Any], known: dict[str, Any], name: str, depth: int) -> Any:
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            wanted = [each for each in fields if each in schema.get("required", fields)]
            return {each: _value(fields[each], known, each, depth + 1) for each in wanted}
        case "array":
            places = schema.get("prefixItems") or [schema.get("items") or {}]
            return [_value(each, known, name, depth + 1) for each in places if isinstance(each, dict)]
        case "string":
            return _FORMATS.get(schema.get("format", ""), f"{name}-1" if name else "a").ljust(
                schema.get("minLength", 0), "a"
            )
        case "integer" | "number" as kind:
            return max(_PLAIN[kind], schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
        case kind:
            return _PLAIN.get(str(kind))
