"""A storage adapter of outhaul as a ``txoutbox.Storage``. What differs between the two is translated here, and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from txoutbox import MessageId, OutboxMessage, OutboxStats

from .drive import Drive


#: Rows that are looked at for older ones than those of a full batch: more than the contract ever inserts.
LOOKAHEAD = 100


class _Claims:
    """Knows which claims overlap."""

    def __init__(self) -> None:
        self._running = 0
        self._begun = 0

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Callable[[], Callable[[], bool]]]:
        """A claim, which may take several calls: gives what to call before one, which gives what to call after it."""
        self._running += 1
        self._begun += 1

        def before() -> Callable[[], bool]:
            begun, others = self._begun, self._running > 1
            return lambda: others or self._begun > begun

        try:
            yield before
        finally:
            self._running -= 1


class _Order:
    """Looks at the order within each key before anything is sorted: only the order across keys is the bridge's."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def look(self, messages: Sequence[OutboxMessage]) -> None:
        for message in messages:
            if message.key is not None:
                number = _number(message)
                last = self._last.get(message.key, number - 1)
                assert last < number, f"key {message.key!r}: row {number} was claimed after row {last}"
                self._last[message.key] = number


class DriveStorage:
    """One table. Each worker has an instance of the adapter to itself, as each process of a relay has."""

    def __init__(self, drive: Drive, table: str) -> None:
        self._drive = drive
        self._table = table
        self._opening: dict[str, asyncio.Future[Any]] = {}
        self._claims = _Claims()

    async def create_schema(self) -> None:
        await self._call("producer", "create_schema")

    async def add(self, topic: str, payload: bytes, *, key: str | None = None) -> MessageId:
        """Inserts a row in a transaction of its own."""
        message = {"topic": topic, "key": key, "payload_base64": base64.b64encode(payload).decode()}
        answer = await self._call("producer", "enqueue", messages=[message])
        return answer["ids"][0]

    async def close(self) -> None:
        for instance in self._opening:
            await self._drive.call("close", instance=instance)

    # -- txoutbox.Storage --------------------------------------------------------------

    async def claim(
        self, *, batch_size: int, lease: timedelta, worker_id: str
    ) -> Sequence[OutboxMessage]:
        async with self._claims.one() as before:
            claimed: list[OutboxMessage] = []
            order = _Order()
            while len(claimed) < batch_size:
                overlaps = before()
                found, unfinished = await self._claim(worker_id, batch_size - len(claimed), lease, order)
                claimed.extend(found)
                # What another worker has locked or leased at this moment cannot be had, and may be free again a moment later: a
                # host polls, and so does this. Only a search that found nothing with nobody in its way has the last word.
                if not (found or unfinished or overlaps()):
                    break
            if len(claimed) < batch_size:
                return _oldest_first(claimed)
            # A full batch may have passed over older rows of other keys.
            claimed.extend((await self._claim(worker_id, LOOKAHEAD, lease, order))[0])
            claimed = _oldest_first(claimed)
            kept, younger = claimed[:batch_size], claimed[batch_size:]
            if younger:
                ids = [message.id for message in younger]
                await self._settle(worker_id, ids, verdict="release", delay_ms=0)
            return kept

    async def _claim(
        self, worker: str, limit: int, lease: timedelta, order: _Order
    ) -> tuple[list[OutboxMessage], bool]:
        answer = await self._call(
            worker, "claim", worker=worker, limit=limit, lease_ms=_millis(lease)
        )
        assert len(answer["messages"]) <= limit
        messages = [_message(message) for message in answer["messages"]]
        order.look(messages)
        return messages, answer["unfinished"]

    async def ack(self, ids: Sequence[MessageId], *, worker_id: str) -> None:
        await self._settle(worker_id, ids, verdict="delivered")

    async def nack(
        self, message_id: MessageId, *, worker_id: str, error: str, retry_at: datetime
    ) -> None:
        await self._settle(
            worker_id, [message_id], verdict="retry", failure=_failure(error), delay_ms=_until(retry_at)
        )

    async def release(
        self, ids: Sequence[MessageId], *, worker_id: str, retry_at: datetime
    ) -> None:
        await self._settle(worker_id, ids, verdict="release", delay_ms=_until(retry_at))

    async def dead_letter(self, message_id: MessageId, *, worker_id: str, error: str) -> None:
        await self._settle(worker_id, [message_id], verdict="dead", failure=_failure(error))

    # -- txoutbox.StatsProvider --------------------------------------------------------

    async def stats(self) -> OutboxStats:
        counts = await self._call("producer", "stats")
        oldest = counts["oldest_pending_ms"]
        return OutboxStats(
            pending=counts["pending"],
            oldest_pending_age=None if oldest is None else timedelta(milliseconds=oldest),
            dead=counts["dead"],
        )

    # -- internals ---------------------------------------------------------------------

    async def _settle(self, worker: str, ids: Sequence[MessageId], **verdict: Any) -> None:
        # The ids that the worker no longer holds come back; txoutbox ignores them silently.
        settlement = {"ids": list(ids), **verdict}
        await self._call(worker, "settle", worker=worker, settlements=[settlement])

    async def _call(self, worker: str, name: str, /, **arguments: Any) -> Any:
        instance = f"{self._table}/{worker}"
        if instance not in self._opening:
            open_it = self._drive.call("open", instance=instance, config={"table": self._table})
            self._opening[instance] = asyncio.ensure_future(open_it)
        await self._opening[instance]
        return await self._drive.call(name, instance=instance, **arguments)


def _oldest_first(messages: list[OutboxMessage]) -> list[OutboxMessage]:
    # Across keys: that each key is in its order already has been looked at.
    return sorted(messages, key=_number)


def _number(message: OutboxMessage) -> int:
    # The ids of outhaul's own tables are numbers that grow.
    return int(str(message.id))


def _message(message: dict[str, Any]) -> OutboxMessage:
    payload = message.get("payload")
    return OutboxMessage(
        id=message["id"],
        topic=message["topic"],
        # txoutbox has no tombstones: a payload that is none becomes an empty one.
        payload=base64.b64decode(message["payload_base64"])
        if "payload_base64" in message
        else (payload or "").encode(),
        key=message["key"],
        # Its headers are texts under unique names: of several, the last one stays.
        headers={name: value for name, value in message["headers"] if isinstance(value, str)},
        attempts=message["attempts"],
        created_at=datetime.fromtimestamp(message["created_at"] / 1000, UTC)
        if message["created_at"]
        else None,
    )


def _failure(error: str) -> dict[str, str]:
    # Outhaul's failures have a code besides; txoutbox has the text only.
    return {"code": "txoutbox", "detail": error}


def _until(moment: datetime) -> int:
    """A point in time by this clock, as a delay: only the database's clock counts for outhaul."""
    return max(0, _millis(moment - datetime.now(UTC)))


def _millis(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)
