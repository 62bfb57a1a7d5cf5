"""Reading the settings: flag over environment over YAML over default, and every fault at once.

    settings = settings_load.load(path, os.environ, {"server.listen": "0.0.0.0:8400"})

A fault of a flag or of the environment has no line; its message names the flag or the variable.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, Final, get_args

from msgspec import Struct
from pydantic import BaseModel, SecretStr, ValidationError

from dispatcher import errors, settings_rules, settings_yaml
from dispatcher.settings import PushPublisher, RedisPublisher, Settings, SqsPublisher
from dispatcher.settings_yaml import Document, FromText, Path, Problem

DEFAULT_FILE: Final = "pointsman.yaml"
VARIABLES: Final[dict[str, Path]] = {
    "POINTSMAN_DATABASE_URL": ("database", "url"),
    "POINTSMAN_LISTEN": ("server", "listen"),
    "POINTSMAN_PUBLIC_URL": ("server", "publicUrl"),
    "POINTSMAN_LOG_LEVEL": ("logLevel",),
    "POINTSMAN_CLAIM_REFRESH_INTERVAL_MS": (
        "daemons",
        "recoverOverdueOutboxEntries",
        "claimRefreshIntervalMs",
    ),
}
_SENTENCES: Final = {
    "wrong_type": {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "bool_type": "true or false",
        "string_type": "text (put it in quotes)",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
        "tuple_type": "a list",
        "list_type": "a list",
    },
    "out_of_range": {
        "greater_than_equal": "at least {ge}",
        "less_than_equal": "at most {le}",
        "string_too_short": "at least {min_length} characters long",
        "string_too_long": "at most {max_length} characters long",
        "too_short": "a list of at least {min_length}",
    },
    "invalid_value": {
        "literal_error": "one of {choices}",
        "union_tag_invalid": "one of {choices}",
        "string_pattern_mismatch": "printable text",
    },
}


class ConfigInvalid(errors.StartUpError):
    """The configuration has faults; `problems` lists them all, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda item: (item.line or 0, item.column or 0, item.path))
        count = len(problems)
        super().__init__("config_invalid", f"The configuration has {count} problem{'s' if count > 1 else ''}.")


class Loaded(Struct, frozen=True):
    """The settings, where they were read, and the layer each value that is no default came from."""

    settings: Settings
    path: FilePath | None
    origins: dict[str, str]


def load(path: str | FilePath | None, environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Loaded:
    """The settings of *path*, else of `POINTSMAN_CONFIG`, else of ./pointsman.yaml if there is one.

    *flags* maps paths such as `server.listen` to values; None is "not given". Raises ConfigInvalid with every fault.
    """
    document, found = _document(path, environ)
    settings_rules.check_written(document)
    origins = {settings_yaml.written(place): "file" for place in document.values if place}
    for variable, place in VARIABLES.items():
        if environ.get(variable):
            _override(document, origins, place, FromText(environ[variable]), f"environment ({variable})")
    for flag, value in (flags or {}).items():
        if value is not None:
            _override(document, origins, tuple(flag.split(".")), value, "flag")
    settings = _validated(document, origins)
    settings_rules.check(document)
    if document.problems or settings is None:
        raise ConfigInvalid(document.problems)
    return Loaded(settings.model_copy(update=_keys(environ)), found, origins)


def _document(path: str | FilePath | None, environ: Mapping[str, str]) -> tuple[Document, FilePath | None]:
    named = path or environ.get("POINTSMAN_CONFIG")
    file = FilePath(named or DEFAULT_FILE)
    if not named and not file.exists():
        return Document({}, {}, {}, []), None
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise ConfigInvalid(
            [Problem(None, None, "", "file_unreadable", f"{file} cannot be read: {error.strerror}.")]
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigInvalid(
            [Problem(None, None, "", "yaml_syntax", f"{file} is not UTF-8 (byte {error.start}).")]
        ) from None
    return settings_yaml.parse(text, environ), file


def _keys(environ: Mapping[str, str]) -> dict[str, SecretStr]:
    names = {"secret_key": "POINTSMAN_SECRET_KEY", "admin_key": "POINTSMAN_ADMIN_KEY"}
    return {field: SecretStr(environ[name]) for field, name in names.items() if environ.get(name)}


def _override(document: Document, origins: dict[str, str], place: Path, value: Any, origin: str) -> None:
    section: Any = document.data
    for part in place[:-1]:
        if not isinstance(section.setdefault(part, {}), dict):
            return  # the fault of the file is reported where it stands
        section = section[part]
    section[place[-1]] = value
    document.values.pop(place, None)
    origins[settings_yaml.written(place)] = origin


def _validated(document: Document, origins: dict[str, str]) -> Settings | None:
    try:
        return Settings.model_validate(_without_empty(document.data), by_alias=True, by_name=False)
    except ValidationError as error:
        known = {problem.path for problem in document.problems}
        found = [_problem(document, item, origins) for item in error.errors(include_url=False)]
        document.problems += [problem for problem in found if problem.path not in known]
        return None


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """A section written without content (`server:`) is an empty one."""
    sections = {name for name, field in Settings.model_fields.items() if field.default is not None}
    return {key: value for key, value in data.items() if value is not None or key not in sections}


def _problem(document: Document, error: Any, origins: dict[str, str]) -> Problem:
    path = _place(error["loc"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return document.problem(path, "unknown_key", f"There is no setting {path[-1]!r} here.", _hint(path), key=True)
    code, message = _sentence(kind, str(path[-1]) if path else "the file", context, error["msg"])
    origin = origins.get(settings_yaml.written(path), "file")
    if origin != "file" and path not in document.values:
        return Problem(None, None, settings_yaml.written(path), code, f"{message[:-1]} (from {origin}).")
    choices = context.get("expected") or context.get("expected_tags")
    hint = _closest(document, path, str(choices)) if choices else None
    return document.problem(path, code, message, hint)


def _sentence(kind: str, name: str, context: dict[str, Any], message: str) -> tuple[str, str]:
    choices = context.get("expected") or context.get("expected_tags")
    for code, sentences in _SENTENCES.items():
        if kind in sentences:
            return code, f"{name} has to be {sentences[kind].format(choices=choices, **context)}."
    if kind in {"missing", "union_tag_not_found"}:
        return "missing", f"{name} is missing." if kind == "missing" else f"{name} needs a type: push, sqs or redis."
    return kind, message


def _place(location: tuple[str | int, ...]) -> Path:
    """*location* without the union tags that pydantic puts into it."""
    path: list[str | int] = []
    for index, part in enumerate(location):
        is_tag = index == 2 and location[0] == "publishers" and part in {"push", "sqs", "redis"}
        if not is_tag and part != "[key]":
            path.append(part)
    return tuple(path)


def _closest(document: Document, path: Path, choices: str) -> str | None:
    value: Any = document.data
    for part in path:
        value = value[part]
    if isinstance(value, dict):
        value = value.get("type")
    options = [choice.strip("' ") for choice in choices.replace(" or ", ", ").split(",")]
    near = difflib.get_close_matches(str(value), options, 1)
    return f"Did you mean {near[0]!r}?" if near else None


def _hint(path: Path) -> str | None:
    known = _known_keys(path[:-1])
    near = difflib.get_close_matches(str(path[-1]), known, 1, 0.6)
    near = near or [key for key in known if key.lower() == str(path[-1]).replace("_", "").replace("-", "").lower()]
    return f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(known)}." if known else None


def _known_keys(path: Path) -> list[str]:
    models: list[type[BaseModel]] = [Settings]
    for part in path:
        fields = [field for model in models for field in model.model_fields.values() if field.alias == part]
        if part == "publishers":
            models = [PushPublisher, SqsPublisher, RedisPublisher]
        elif fields:
            models = [model for field in fields for model in _models(field.annotation)]
    keys = {str(field.alias) for model in models for field in model.model_fields.values()}
    return sorted(keys - settings_rules.ENVIRONMENT_ONLY)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]
