"""Reading the configuration again while the dispatcher runs: what is faulty is told, and the old one stays in force."""

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher import errors, settings_load, telemetry

if TYPE_CHECKING:
    from dispatcher.app import Dispatcher

log = logging.getLogger(__name__)


class LiveConfiguration:
    """The file *config* (None: as `settings_load.load` finds it) under the flags and the environment of the process."""

    def __init__(self, config: Path | None, given: dict[str, Any]) -> None:
        self._config = config
        self._given = given
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """The configuration is read again soon; asking while it is being read makes it read once more."""
        self._asked.set()

    async def follow(self, dispatcher: "Dispatcher") -> None:
        """Reloads *dispatcher* each time it is asked for, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self.reload(dispatcher)
            except (errors.StartUpError, errors.Unavailable) as error:
                extra = {"code": error.code, "cause": error.message, "hint": error.hint}
                log.error("configuration not reloaded, the old one stays", extra=extra)  # noqa: TRY400 - said in words
            except Exception:
                log.exception("configuration not reloaded, the old one stays")

    async def reload(self, dispatcher: "Dispatcher") -> bool:
        """Whether the file was good; every fault of a bad one is logged with its line and column.

        Raises as `Dispatcher.reload` does, with nothing changed.
        """
        try:
            loaded = await asyncio.to_thread(settings_load.load, self._config, os.environ, self._given)
        except settings_load.ConfigInvalid as invalid:
            for problem in invalid.problems:
                log.error(  # noqa: TRY400 - faults of a file have no traceback
                    "fault in the configuration",
                    extra={
                        "line": problem.line,
                        "column": problem.column,
                        "path": problem.path,
                        "code": problem.code,
                        "cause": problem.message,
                        "hint": problem.hint,
                    },
                )
            log.error("configuration not reloaded, the old one stays", extra={"code": invalid.code})  # noqa: TRY400
            return False
        await dispatcher.reload(loaded.settings)
        telemetry.set_level(loaded.settings.log_level)
        return True
