"""All SQL of the dispatcher.

`Store` runs whole operations: a function that takes a `Session` is one transaction. The functions in this package's
modules take the session, return rows or None, and never commit.
"""

from dispatcher.store.session import Session, Statement
from dispatcher.store.store import Store

__all__ = ["Session", "Statement", "Store"]
