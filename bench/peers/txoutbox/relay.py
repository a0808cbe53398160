"""One run of txoutbox: fills its table, drains it by relays in processes of their own, counts.

PEER_DATABASE is the URL of a PostgreSQL database, or the path of a SQLite file that does not exist yet. Prints one line of JSON.
Everything is txoutbox's default but the batch, the lease, which is as long as its warning about a batch of that size asks for, and the
polling: a relay that found nothing looks again after at most 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import math
import multiprocessing
import os
import platform
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from txoutbox import Hooks, OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.sqlite import SqliteStorage

URL = os.environ["PEER_DATABASE"]
IS_POSTGRES = URL.startswith("postgres")

# Rows of a transaction, as those of the other tables are written.
TRANSACTION = 500


async def open_storage() -> Any:
    if not IS_POSTGRES:
        return SqliteStorage(URL)
    from txoutbox.adapters.postgres import PostgresStorage

    return await PostgresStorage.connect(URL)


# Payloads have the same characters again after so many bytes.
PERIOD = 1 << 20


def payloads_of(size: int) -> Callable[[int], bytes]:
    """The payload of a row: a JSON string of that many bytes, with other characters in each row.

    They are those of the Base64 of SHA-256 of 0, 1 and so on, each row's behind those of the row before. The other programs make the same.
    """
    room = size - 2
    digests = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range((PERIOD + room) // 32 + 1))
    noise = base64.b64encode(digests)

    def payload(row: int) -> bytes:
        begin = row * room % PERIOD
        return b'"' + noise[begin : begin + room] + b'"'

    return payload


def transactions(rows: int) -> Iterator[range]:
    """The rows of each transaction that fills the table."""
    return (range(begin, min(begin + TRANSACTION, rows)) for begin in range(0, rows, TRANSACTION))


async def fill(rows: int, keys: int, payload: int) -> str:
    """Makes the table by txoutbox's own DDL and fills it. Returns the database's version."""
    storage = await open_storage()
    payload_of = payloads_of(payload)
    if not IS_POSTGRES:
        storage.create_schema()
        storage.close()
        connection = sqlite3.connect(URL)
        for part in transactions(rows):
            with connection:
                connection.executemany(
                    "INSERT INTO outbox (topic, key, payload, created_at) VALUES ('bench', ?, ?, ?)",
                    ((f"k{row % keys}", payload_of(row), time.time()) for row in part),
                )
        connection.close()
        return sqlite3.sqlite_version
    await storage.create_schema()
    async with storage.pool.acquire() as connection:
        for part in transactions(rows):
            await connection.execute(
                "INSERT INTO outbox (topic, key, payload) "
                "SELECT 'bench', key, payload FROM unnest($1::text[], $2::bytea[]) row (key, payload)",
                [f"k{row % keys}" for row in part],
                [payload_of(row) for row in part],
            )
        server: str = await connection.fetchval("SHOW server_version")
    await storage.close()
    return server


async def delivered() -> int:
    storage = await open_storage()
    count = "SELECT count(*) FROM outbox WHERE status = 'done'"
    if IS_POSTGRES:
        done: int = await storage.pool.fetchval(count)
        await storage.close()
        return done
    storage.close()
    return int(sqlite3.connect(URL).execute(count).fetchone()[0])


class Until(Hooks):
    """Stops its relay when all relays together have delivered everything, and remembers when its own last round ended."""

    def __init__(self, total: Any, rows: int) -> None:
        self.total, self.rows, self.ended = total, rows, 0.0
        self.stop: Callable[[], None] = lambda: None

    async def on_round(self, result: Any, duration: float) -> None:
        self.ended = time.monotonic()
        with self.total.get_lock():
            self.total.value += result.published
            if self.total.value >= self.rows:
                self.stop()

    async def on_claimed(self, messages: Any) -> None:
        if not messages and self.total.value >= self.rows:
            self.stop()


def lease_for(batch: int) -> timedelta:
    """Its default, or as long as a batch takes if each message takes all the time that it may."""
    default = RelayConfig()
    return max(default.lease, timedelta(seconds=math.ceil(batch / default.concurrency) * (default.publish_timeout or 0)))


def work(batch: int, rows: int, total: Any, barrier: Any, times: Any) -> None:
    async def run() -> None:
        async def publish(message: OutboxMessage) -> None:
            pass

        storage = await open_storage()
        hooks = Until(total, rows)
        config = RelayConfig(batch_size=batch, lease=lease_for(batch), poll_min=0.005, poll_max=0.05)
        relay = Relay(storage, publish, config=config, hooks=hooks)
        hooks.stop = relay.stop
        barrier.wait()
        started = time.monotonic()
        await relay.run()
        times.put((started, hooks.ended or started))

    threading.Thread(target=end_with_parent, daemon=True).start()
    asyncio.run(run())


def end_with_parent() -> None:
    """A relay tries for ever: killing the program must end it as well."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in [("rows", 100_000), ("keys", 1000), ("payload", 256), ("batch", 50), ("workers", 1)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    server = asyncio.run(fill(options.rows, options.keys, options.payload))

    context = multiprocessing.get_context("spawn")
    total, barrier, times = context.Value("q", 0), context.Barrier(options.workers), context.Queue()
    arguments = (options.batch, options.rows, total, barrier, times)
    workers = [context.Process(target=work, args=arguments, daemon=True) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode != 0:
            sys.exit(f"a worker ended with {worker.exitcode}")
    spans = [times.get() for _ in workers]
    seconds = max(end for _, end in spans) - min(start for start, _ in spans)
    done = asyncio.run(delivered())
    database = "PostgreSQL" if IS_POSTGRES else "SQLite"
    versions = {"txoutbox": version("txoutbox"), "Python": platform.python_version(), f"{database} (txoutbox)": server}
    if IS_POSTGRES:
        versions["asyncpg"] = version("asyncpg")
    print(json.dumps({"sent": total.value, "settled": done, "seconds": seconds, "versions": versions}))


if __name__ == "__main__":
    main()
