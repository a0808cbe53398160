"""txoutbox's own contract for storages, against an adapter of outhaul.

``OUTHAUL_DRIVE`` is the command of a session, as a JSON list: ``["outhaul", "plugin", "drive", "sqlite-storage.wasm", ...]``.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from outhaul_bridge import Drive, DriveStorage
from txoutbox import MessageId
from txoutbox.testing import StorageContract

_tables = itertools.count(1)


@pytest.fixture(scope="session")
def drive() -> Iterator[Drive]:
    session = Drive(json.loads(os.environ["OUTHAUL_DRIVE"]))
    yield session
    assert session.close() == 0


class TestOuthaul(StorageContract):
    # A settle must reach the database within it, on a machine that has other things to do.
    short_lease = timedelta(milliseconds=400)

    @pytest.fixture
    async def storage(self, drive: Drive) -> AsyncIterator[DriveStorage]:
        storage = DriveStorage(drive, f"contract_{next(_tables)}")
        await storage.create_schema()
        yield storage
        await storage.close()

    async def insert(
        self, storage: DriveStorage, topic: str, payload: bytes, key: str | None = None
    ) -> MessageId:
        return await storage.add(topic, payload, key=key)
