"""JSON for what a run records: a codec per annotation, built when a task or workflow is decorated, never at a call.

    annotations   what a function says it takes and returns
    plain_json    values of any type as JSON, and JSON as builtins
    by_msgspec    dataclasses, attrs classes, Structs, NamedTuples, TypedDicts, enums, times, and what they hold
    by_pydantic   annotations that name pydantic models, through TypeAdapter
    by_tag        unions of classes that JSON alone cannot tell apart

Values always make the round trip, so a first run sees what a replay will see: an unannotated result comes back as
builtins at once.
"""

from endpoint_sdk.codec.annotations import annotation_of
from endpoint_sdk.codec.plain_json import check_size, from_json, to_json
from endpoint_sdk.codec.strategies import Codec, for_annotation

__all__ = ["Codec", "annotation_of", "check_size", "for_annotation", "from_json", "to_json"]
