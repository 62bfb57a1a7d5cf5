"""What a program has to serve: found in its module as it stands, in the process that will run it."""

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, Literal

import msgspec

from dispatcher.cli.dev import example
from endpoint_sdk import AsyncTask, Endpoint, Task, Worker, Workflow, codec
from endpoint_sdk.asgi import AsgiApp
from endpoint_sdk.aws_lambda import LambdaHandler
from endpoint_sdk.wire.messages import ServedWorkflow

Kind = Literal["lambda", "asgi", "worker"]
_PREFERRED: tuple[Kind, ...] = ("worker", "lambda", "asgi")


class NothingFound(Exception):
    """The module holds nothing that could be served; the message says what would be."""


class Described(msgspec.Struct, frozen=True):
    """A workflow for a person: *takes* and *gives* are its types, *sample* an input as JSON, or None."""

    name: str
    version: str
    takes: str
    gives: str
    tasks: list[str]
    sample: str | None


class Found(msgspec.Struct, frozen=True, tag="found"):
    """What is served and how: *what* names it in the module, *endpoint* is its name, *path* where it is mounted."""

    kind: Kind
    what: str
    endpoint: str
    path: str
    workflows: list[Described]
    others: list[str]


class Service(msgspec.Struct, frozen=True):
    """Something in the module that can be served: an ASGI application, a Lambda handler or a worker."""

    kind: Kind
    name: str
    served: Any
    owner: Any
    path: str = "/"


def choose(module: ModuleType, name: str | None) -> tuple[Service, list[str]]:
    """What to serve of *module*, and the names of what could be served instead.

    With *name* it is that object; else a worker, a Lambda handler, an ASGI application, in this order. Raises
    NothingFound.
    """
    if name is not None and not hasattr(module, name):
        raise NothingFound(f"There is no {name} in {module.__name__}.")
    services = [each for each in _services(module) if name in {None, each.name}]
    if not services:
        raise NothingFound(
            f"{f'{name} is' if name else f'{module.__name__} has'} nothing to serve; write for example\n"
            "    endpoint = Endpoint([my_workflow])"
        )
    services.sort(key=lambda each: _PREFERRED.index(each.kind))
    chosen, *rest = services
    return chosen, [each.name for each in rest if each.owner is not chosen.owner]


def describe(service: Service, others: list[str], module: ModuleType) -> Found:
    """*service* in words and types; an endpoint without a name of its own is called by its module's."""
    owner = service.owner
    served = owner.served if isinstance(owner, Worker) else owner.discovered().workflows
    names = () if isinstance(owner, Worker) else owner.names
    endpoint = min(names) if names else module.__name__.rpartition(".")[2]
    return Found(service.kind, service.name, endpoint, service.path, [_described(each) for each in served], others)


def _services(module: ModuleType) -> Iterator[Service]:
    values = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    applications: list[Any] = []
    for name, value in values.items():
        if isinstance(value, Worker):
            yield Service("worker", name, value, value)
        elif (handler := _lambda_handler(value)) is not None:
            yield Service("lambda", name, value, handler.endpoint)
        elif (mounted := _mounted(value)) is not None:
            applications.append(mounted[1].endpoint)
            yield Service("asgi", name, value, mounted[1].endpoint, mounted[0])
    for name, value in values.items():
        if isinstance(value, Endpoint) and value not in applications:
            yield Service("asgi", name, value.asgi, value)


def _lambda_handler(value: Any) -> LambdaHandler | None:
    """The handler of an endpoint that *value* is, or that decorates it."""
    if isinstance(value, LambdaHandler):
        return value
    cells = getattr(value, "__closure__", None) or () if inspect.isfunction(value) else ()
    inside = [cell.cell_contents for cell in cells if _filled(cell)]
    return next((each for each in inside if isinstance(each, LambdaHandler)), None)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _mounted(value: Any, prefix: str = "", depth: int = 0) -> tuple[str, AsgiApp] | None:
    """Where in the ASGI application *value* an endpoint is mounted: the path to push to, and the endpoint's part."""
    if isinstance(value, AsgiApp):
        return f"{prefix}/", value
    routes = getattr(value, "routes", None)
    if isinstance(value, type) or not isinstance(routes, list) or depth > 3:
        return None
    found = (
        _mounted(route.app, prefix + getattr(route, "path", ""), depth + 1) for route in routes if hasattr(route, "app")
    )
    return next((each for each in found if each is not None), None)


def _described(served: ServedWorkflow) -> Described:
    workflow = next((each for each in _workflows() if (each.name, each.version) == (served.name, served.version)), None)
    if workflow is None:
        return Described(served.name, served.version, "?", "?", [], None)
    where = f"workflow {workflow.name!r}"
    result = _type_name(codec.annotation_of(workflow.fn, "return", where))
    tasks = list(_tasks(workflow.fn))
    if not workflow.takes_input:
        return Described(served.name, served.version, "nothing", result, tasks, "null")
    parameter = list(inspect.signature(workflow.fn).parameters)[-1]
    annotation = codec.annotation_of(workflow.fn, parameter, where)
    sample = example.of(annotation, workflow)
    return Described(served.name, served.version, _type_name(annotation), result, tasks, sample)


def _workflows() -> Iterator[Workflow[Any, Any]]:
    for module in list(sys.modules.values()):
        yield from (each for each in list(vars(module).values()) if isinstance(each, Workflow))


def _tasks(fn: Callable[..., Any]) -> Iterator[str]:
    """The tasks *fn* names, in the order of its code; those it reaches through other functions are not seen."""
    plain = inspect.unwrap(fn)
    named = (plain.__globals__.get(name) for name in dict.fromkeys(_names(plain.__code__)))
    yield from (each.name for each in named if isinstance(each, Task | AsyncTask))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _type_name(annotation: Any) -> str:
    if annotation is Any:
        return "anything"
    if annotation is type(None) or annotation is None:
        return "nothing"
    return (
        annotation.__name__
        if isinstance(annotation, type) and not hasattr(annotation, "__args__")
        else _written(annotation)
    )


def _written(annotation: Any) -> str:
    return inspect.formatannotation(annotation).replace("typing.", "")
