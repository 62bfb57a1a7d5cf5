"""What a review found in schemas that are older or newer than the code."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import dispatcher
from dispatcher import app, errors
from dispatcher.store import Session, Statement, Store, migrating
from tests.integration.pollers import DEADLINE_MS, Poller, ids
from tests.integration.world import World


def _from_the_future(url: str, min_code: int) -> None:
    """The database is at the schema of a later release, which serves code from *min_code* on."""

    def operation(session: Session) -> None:
        session.run(Statement(sa.text("UPDATE alembic_version SET version_num = '9999'")))
        session.run(Statement(sa.text(f"UPDATE schema_version SET version = 9999, min_code = {min_code}")))

    store = Store.open(url)
    try:
        store.transact_blocking(operation)
    finally:
        store.close()


def test_back_to_this_release(database_url: str) -> None:
    """A dispatcher starts on the schema of a later release that still serves its code, and leaves it as it is."""
    _from_the_future(database_url, migrating.CODE_VERSION)

    store = app.open_store(database_url)
    try:
        store.migrate()
        assert migrating.current(store) == 9999
    finally:
        store.close()


def test_too_far_back(database_url: str) -> None:
    """A schema that no longer serves this code is refused in one sentence, when starting and when migrating."""
    _from_the_future(database_url, migrating.CODE_VERSION + 1)

    with pytest.raises(errors.StartUpError) as caught:
        app.open_store(database_url)
    assert caught.value.code == "code_too_old"


async def test_runs_of_the_schema_before(store: Store) -> None:
    """Runs that were queued, published and claimed at schema 1 go on after the upgrade, and every invariant holds."""
    world = World(store)
    world.add_endpoint()
    claimed = await world.claim(await world.submit())
    published, queued = await world.submit(), await world.submit()
    world.publish(published)
    _to_schema_one(store)

    store.migrate()

    world.check()
    assert world.entry(published).route == "push"
    assert await world.is_held(claimed)
    poller = Poller(world)
    assert ids(await poller()) == [queued]
    world.elapse(DEADLINE_MS)
    assert ids(await poller()) == [published]


def _to_schema_one(store: Store) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(dispatcher.__file__).parent / "migrations"))
    engine = sa.create_engine(store.driver.engine_url, creator=store.driver.raw, poolclass=sa.NullPool)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    engine.dispose()
