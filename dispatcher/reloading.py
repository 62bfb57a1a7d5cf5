"""What a reload of the configuration may change while the dispatcher runs, and what needs a restart."""

import logging
from typing import Any, Final

from dispatcher.settings import Settings

FIXED: Final = ("server.listen", "database.url", "POINTSMAN_SECRET_KEY", "POINTSMAN_ADMIN_KEY")
"""What holds from start to end of the process."""

log = logging.getLogger(__name__)


def effective(before: Settings, after: Settings) -> Settings:
    """*after* as far as it can change live, the rest as *before*; what needs a restart is logged."""
    restart = [name for name, old, new in zip(FIXED, _fixed(before), _fixed(after), strict=True) if old != new]
    if restart:
        log.warning("these settings change with a restart only", extra={"settings": restart})
    return after.model_copy(
        update={
            "server": after.server.model_copy(update={"listen": before.server.listen}),
            "database": before.database,
            "secret_key": before.secret_key,
            "admin_key": before.admin_key,
        }
    )


def changed(before: Settings, after: Settings) -> list[str]:
    """The sections and publishers that differ, each by its name in the file."""
    found = [
        f"publishers.{name}"
        for name in [*before.publishers, *(after.publishers.keys() - before.publishers.keys())]
        if before.publishers.get(name) != after.publishers.get(name)
    ]
    for name, field in Settings.model_fields.items():
        if name != "publishers" and getattr(before, name) != getattr(after, name):
            found.append(str(field.alias))
    if list(before.publishers) != list(after.publishers) and not found:
        found.append("publishers")
    return sorted(found)


def _fixed(settings: Settings) -> tuple[Any, ...]:
    return settings.server.listen, settings.database.url, settings.secret_key, settings.admin_key
