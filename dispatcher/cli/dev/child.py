"""The process a program runs in: imports it, reports what is in it, and serves that until it is told to end.

python -m dispatcher.cli.dev.child FOLDER MODULE NAME CHANNEL LISTENER      (NAME may be empty)
"""

import importlib
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType

from dispatcher.cli.dev import findings, function
from dispatcher.cli.dev.channel import Child, Failed, Serve


def main() -> None:
    root, module, name, channel, listener = sys.argv[1:]
    parent = Child(socket.socket(fileno=int(channel)))
    try:
        sys.path.insert(0, root)
        program = importlib.import_module(module)
        service, others = findings.choose(program, name or None)
        found = findings.describe(service, others, program)
    except findings.NothingFound as error:
        parent.tell(Failed(str(error)))
        return
    except BaseException as error:
        # A program may exit, or raise what it likes, while it is imported.
        parent.tell(Failed(_told(error)))
        return
    parent.tell(found)
    if not isinstance(parent.order(), Serve):
        return
    with socket.socket(fileno=int(listener)) as bound:
        _serve(service, parent, bound)


def _serve(service: findings.Service, parent: Child, bound: socket.socket) -> None:
    if service.kind == "lambda":
        bound.close()
        function.answer(service.served, service.name, parent)
        return
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if service.kind == "worker":
        bound.close()
        service.served.run()
        return
    import uvicorn

    config = uvicorn.Config(service.served, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[bound])


def _end_with(parent: Child) -> None:
    """Ends this process as soon as its parent closes the channel or dies."""
    while parent.order() is not None:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _told(error: BaseException) -> str:
    """The traceback from the program's own first line on."""
    frames = error.__traceback__
    here = str(Path(__file__).parent)
    while frames is not None and (_of(frames.tb_frame).startswith(here) or "importlib" in _of(frames.tb_frame)):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _of(frame: FrameType) -> str:
    return frame.f_code.co_filename


if __name__ == "__main__":
    main()
