"""What the API's handlers work with; filled by the composition root."""

import msgspec

from dispatcher.access import Access
from dispatcher.completion import Completion
from dispatcher.discovery import Discovery
from dispatcher.polling import Polling
from dispatcher.readiness import Readiness
from dispatcher.registry import Registry
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Store


class Services(msgspec.Struct):
    """*settings* are replaced at a reload; everything else stays."""

    settings: Settings
    store: Store
    keys: ServerKeys
    access: Access
    registry: Registry
    discovery: Discovery
    completion: Completion
    polling: Polling
    readiness: Readiness
