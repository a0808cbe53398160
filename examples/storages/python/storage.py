"""A storage over a table of names and values: every message is one JSON text under `live/`, `done/` or `dead/` and its number.

It keeps the whole contract of outbox.wit, strict order included, with three statements: get a range, put, delete. Each call is one
transaction. A claim reads the live messages from the first on, so it is for tables of thousands, not of millions.
"""

import base64
import json
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterator, List, Optional, Tuple, TypeVar

import outhaul
from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import storage, storage_admin, storage_fused
from wit_world.imports import outbox, sql

T = TypeVar("T")

# Names read at once.
PAGE = 500
# Rows that one claim ends dead; the host claims again at once.
MOST_REFUSED = 1000

_INTEGER, _TEXT = sql.ColumnType.INTEGER, sql.ColumnType.TEXT
# Milliseconds by the database's clock, which alone judges what is due.
_NOW = "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@dataclass
class Settings:
    """The configuration."""

    database: str
    table: str


# Set by `open`. The host's calls each get an object of their own, so what lasts is kept here.
settings: Optional[Settings] = None
connection: Optional[sql.Connection] = None


def parse(config: str) -> Settings:
    """Reads the configuration; raises what `open` has to raise."""
    table = json.loads(config)
    made = Settings(database=table.pop("database", None), table=table.pop("table", "outbox_kv"))
    for key in table:
        raise outhaul.invalid_configuration(f"`{key}`: unknown key; there are `database` and `table`")
    if not isinstance(made.database, str):
        raise outhaul.invalid_configuration("`database`: must name a database")
    if not isinstance(made.table, str) or not made.table.isidentifier() or not made.table.isascii():
        raise outhaul.invalid_configuration("`table`: must be letters, digits and `_`")
    return made


def failed(error: sql.Error, what: str) -> Err:
    """An error of the database, as a failure. Only what can get better by itself is `unavailable`."""
    passing = {sql.ErrorCode.UNAVAILABLE, sql.ErrorCode.BUSY, sql.ErrorCode.TIMEOUT}
    if error.code is sql.ErrorCode.DENIED:
        return outhaul.invalid_configuration(f"`database`: {error.detail}")
    if error.code is sql.ErrorCode.MISSING:
        return Err(outhaul.failure("unavailable", f"the table is not there: run `outhaul schema --apply` ({error.detail})"))
    code = "unavailable" if error.code in passing else "sql-" + error.code.name.lower().replace("_", "-")
    return Err(outhaul.failure(code, f"{what}: {error.detail}"))


@dataclass
class Row:
    """A message and what became of it so far. Times are milliseconds of the database's clock."""

    id: str
    topic: str
    key: Optional[str]
    headers: List[Tuple[str, str]]
    payload: Optional[str]
    created_at: int
    due: int
    attempts: int = 0
    worker: Optional[str] = None
    lease_end: int = 0
    error: Optional[str] = None
    settled_at: int = 0

    @classmethod
    def read(cls, text: str) -> "Row":
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(self.__dict__)

    def is_leased(self, now: int) -> bool:
        return self.worker is not None and self.lease_end > now

    def body(self) -> Optional[bytes]:
        return None if self.payload is None else base64.b64decode(self.payload)

    def size(self) -> int:
        """What counts against `max-bytes`."""
        headers = sum(len(name.encode()) + len(base64.b64decode(value)) for name, value in self.headers)
        return len(self.body() or b"") + len((self.key or "").encode()) + headers


@dataclass
class Call:
    """One transaction: what it reads is as of its beginning, and what it writes is written at its end, or not at all."""

    transaction: sql.Transaction
    now: int
    writes: Dict[str, Optional[str]] = field(default_factory=dict)

    def range(self, prefix: str, after: str = "") -> Iterator[Tuple[str, str]]:
        """Names and values below a prefix, in the order of the names."""
        name = max(after, prefix)
        while True:
            statement = _statement(
                f"SELECT name, value FROM {settings.table} WHERE name > ?1 AND name < ?2 ORDER BY name LIMIT {PAGE}",
                [name, prefix[:-1] + chr(ord(prefix[-1]) + 1)],
                [_TEXT, _TEXT],
            )
            [rows] = self.transaction.execute([statement])
            names, values = (column.value for column in rows.columns)
            for index in range(len(names.ends)):
                name = outhaul.text(names, index)
                yield name, outhaul.text(values, index)
            if len(names.ends) < PAGE:
                return

    def get(self, name: str) -> Optional[str]:
        """A value, as this call has written it."""
        if name in self.writes:
            return self.writes[name]
        statement = _statement(f"SELECT value FROM {settings.table} WHERE name = ?1", [name], [_TEXT])
        [rows] = self.transaction.execute([statement])
        return outhaul.text(rows.columns[0].value, 0) if rows.columns[0].value.ends else None

    def put(self, name: str, value: str) -> None:
        self.writes[name] = value

    def delete(self, name: str) -> None:
        self.writes[name] = None

    def move(self, name: str, prefix: str, row: Row) -> None:
        """Puts a message under another prefix; its number stays."""
        number = name.partition("/")[2]
        self.delete(name)
        self.put(f"{prefix}{number}", row.text())
        self.put(f"id/{row.id}", f"{prefix}{number}")

    def statements(self) -> List[sql.Statement]:
        upsert = f"INSERT INTO {settings.table} (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        delete = f"DELETE FROM {settings.table} WHERE name = ?1"
        return [
            _statement(delete, [name]) if value is None else _statement(upsert, [name, value])
            for name, value in self.writes.items()
        ]


def _statement(text: str, parameters: List[str] = [], columns: List[sql.ColumnType] = []) -> sql.Statement:
    return sql.Statement(sql=text, parameters=[sql.Value_Text(item) for item in parameters], columns=columns, must_change=None)


def call(what: str, work: Callable[[Call], T]) -> T:
    """Runs a transaction, committed if nothing is raised. (Not a `with`: contextlib cannot carry componentize-py's `Err`.)"""
    try:
        transaction, [rows] = connection.begin([_statement(_NOW, columns=[_INTEGER])])
        made = Call(transaction, rows.columns[0].value.values[0])
        try:
            result = work(made)
        except BaseException:
            # Dropping it rolls it back.
            transaction.__exit__(None, None, None)
            raise
        sql.Transaction.commit(transaction, made.statements())
        return result
    except Err as error:
        raise failed(error.value, what) if isinstance(error.value, sql.Error) else error from None


def batch_of(rows: List[Row]) -> outbox.Batch:
    """Messages as the host takes them."""
    ends, end = [], 0
    for row in rows:
        end += len(row.headers)
        ends.append(end)
    headers = [header for row in rows for header in row.headers]
    return outbox.Batch(
        ids=outhaul.column(row.id for row in rows),
        topics=outhaul.column(row.topic for row in rows),
        keys=outhaul.column(row.key for row in rows),
        header_names=outhaul.column(name for name, _ in headers),
        header_values=outhaul.column(base64.b64decode(value) for _, value in headers),
        header_ends=ends,
        payloads=outhaul.column(row.body() for row in rows),
        attempts=[max(row.attempts, 1) for row in rows],
        created_at=[row.created_at for row in rows],
        destinations=None,
    )


def claim(now: Call, request: storage.ClaimRequest) -> storage.Claimed:
    """The first rows that are due, each key's as an unbroken run from its first live row."""
    blocked, chosen, refused, size = set(), [], [], 0
    # What this very call has settled is not as it was when the call began.
    settled = {name for name in now.writes if name.startswith("live/")}
    for name, text in now.range("live/"):
        if name in settled:
            text = now.writes[name]
            if text is None:
                continue
        row = Row.read(text)
        if row.key is not None and row.key in blocked:
            continue
        if row.is_leased(now.now) or row.due > now.now:
            if row.key is not None:
                blocked.add(row.key)
            continue
        failure = None
        if request.max_attempts and row.attempts >= request.max_attempts:
            text = f"gave up after {row.attempts} attempts: the lease of the last one ran out"
            failure = outhaul.failure("attempts-used-up", text)
        elif row.size() > request.max_message_bytes:
            failure = outhaul.failure("too-large", f"{row.size()} bytes are more than the limit of {request.max_message_bytes}")
        if failure is not None:
            row.worker, row.error, row.settled_at = None, failure.detail, now.now
            now.move(name, "dead/", row)
            refused.append(storage.Refusal(row.id, failure))
            if len(refused) == MOST_REFUSED:
                return storage.Claimed(batch_of(chosen), refused, unfinished=True)
            continue
        size += row.size()
        if chosen and size > request.max_bytes:
            break
        row.attempts += 1
        row.worker, row.lease_end = request.worker, now.now + request.lease_ms
        now.put(name, row.text())
        chosen.append(row)
        if len(chosen) == request.limit:
            break
    return storage.Claimed(batch_of(chosen), refused, unfinished=False)


def held(now: Call, worker: str, ids: outbox.Column) -> Tuple[List[Tuple[str, Row]], List[str]]:
    """The rows of these ids that the worker holds, and the other ids. A lease that nobody took over is still its holder's."""
    rows, lost = [], []
    for index in range(len(ids.ends)):
        id_ = outhaul.text(ids, index)
        name = now.get(f"id/{id_}")
        text = now.get(name) if name is not None and name.startswith("live/") else None
        row = None if text is None else Row.read(text)
        if row is None or row.worker != worker:
            lost.append(id_)
        else:
            rows.append((name, row))
    return rows, lost


def settle(now: Call, worker: str, settlements: List[storage.Settlement]) -> List[str]:
    all_lost = []
    for settlement in settlements:
        rows, lost = held(now, worker, settlement.ids)
        all_lost += lost
        for name, row in rows:
            row.worker = None
            match settlement.verdict:
                case storage.Verdict_Delivered():
                    row.settled_at = now.now
                    now.move(name, "done/", row)
                case storage.Verdict_Retry(retry):
                    row.due, row.error = now.now + retry.delay_ms, retry.failure.detail
                    now.put(name, row.text())
                case storage.Verdict_Release(delay_ms):
                    row.due, row.attempts = now.now + delay_ms, row.attempts - 1
                    now.put(name, row.text())
                case storage.Verdict_Dead(failure):
                    row.settled_at, row.error = now.now, failure.detail
                    now.move(name, "dead/", row)
    return all_lost


def extend(now: Call, worker: str, ids: outbox.Column, lease_ms: int) -> List[str]:
    rows, lost = held(now, worker, ids)
    for name, row in rows:
        row.lease_end = now.now + lease_ms
        now.put(name, row.text())
    return lost


def stats(now: Call) -> storage.Counts:
    counts = storage.Counts(pending=0, due=0, leased=0, dead=sum(1 for _ in now.range("dead/")), oldest_pending_ms=None)
    for _, text in now.range("live/"):
        row = Row.read(text)
        counts.pending += 1
        if row.is_leased(now.now):
            counts.leased += 1
        elif row.due <= now.now:
            counts.due += 1
        counts.oldest_pending_ms = max(counts.oldest_pending_ms or 0, now.now - row.created_at, 0)
    return counts


def enqueue(now: Call, batch: outbox.Batch) -> List[str]:
    number = int(now.get("next") or 1)
    ids = []
    for message in outhaul.messages(batch):
        # A number that was given as an id is passed over.
        while not message.id and now.get(f"id/{number}") is not None:
            number += 1
        id_ = message.id or str(number)
        if now.get(f"id/{id_}") is not None:
            raise Err(outhaul.failure("invalid-message", f"the id `{id_}` is taken"))
        payload = message.payload
        row = Row(
            id=id_,
            topic=message.topic,
            key=message.key,
            headers=[(name, base64.b64encode(value).decode()) for name, value in message.headers],
            payload=None if payload is None else base64.b64encode(payload).decode(),
            created_at=now.now,
            due=now.now,
        )
        name = f"live/{number:016d}"
        now.put(name, row.text())
        now.put(f"id/{id_}", name)
        ids.append(id_)
        number += 1
    now.put("next", str(number))
    return ids


def browse(now: Call, filter: storage_admin.Filter, after: Optional[str], limit: int, with_messages: bool) -> storage_admin.Page:
    found = []
    for prefix in ("live/", "done/", "dead/"):
        taken = 0
        for name, text in now.range(prefix, prefix + (after or "")):
            row = Row.read(text)
            if matches(row, state(row, prefix, now.now), filter):
                found.append((name[len(prefix) :], prefix, row))
                taken += 1
                # One more than asked for tells whether there is a next page.
                if taken > limit:
                    break
    found.sort(key=lambda entry: entry[0])
    page = found[:limit]
    return storage_admin.Page(
        rows=[shown(row, prefix, now.now) for _, prefix, row in page],
        messages=batch_of([row for _, _, row in page]) if with_messages else None,
        next=page[-1][0] if len(found) > limit else None,
    )


def requeue(now: Call, filter: storage_admin.Filter) -> int:
    rows = dead(now, filter)
    for name, row in rows:
        row.attempts, row.due, row.settled_at, row.worker = 0, now.now, 0, None
        now.move(name, "live/", row)
    return len(rows)


def discard(now: Call, filter: storage_admin.Filter) -> int:
    rows = dead(now, filter)
    for name, row in rows:
        now.delete(name)
        now.delete(f"id/{row.id}")
    return len(rows)


def purge(now: Call, older_than_ms: int, limit: int) -> int:
    count = 0
    for name, text in now.range("done/"):
        row = Row.read(text)
        if count < limit and now.now - row.settled_at >= older_than_ms:
            now.delete(name)
            now.delete(f"id/{row.id}")
            count += 1
    return count


def state(row: Row, prefix: str, now: int) -> storage_admin.RowState:
    if prefix == "live/":
        return storage_admin.RowState.LEASED if row.is_leased(now) else storage_admin.RowState.PENDING
    return storage_admin.RowState.DELIVERED if prefix == "done/" else storage_admin.RowState.DEAD


def matches(row: Row, its: storage_admin.RowState, filter: storage_admin.Filter) -> bool:
    if filter.state is not None and filter.state is not its:
        return False
    return (filter.topic is None or filter.topic == row.topic) and (not filter.ids or row.id in filter.ids)


def shown(row: Row, prefix: str, now: int) -> storage_admin.Row:
    its = state(row, prefix, now)
    wait = {storage_admin.RowState.PENDING: row.due - now}.get(its, 0)
    return storage_admin.Row(row.id, row.topic, row.key, its, row.attempts, row.error, row.created_at, max(wait, 0))


def dead(now: Call, filter: storage_admin.Filter) -> List[Tuple[str, Row]]:
    """Dead rows that match; rows in other states are left alone, whatever the filter says."""
    if filter.state not in (None, storage_admin.RowState.DEAD):
        return []
    rows = [(name, Row.read(text)) for name, text in now.range("dead/")]
    return [(name, row) for name, row in rows if matches(row, storage_admin.RowState.DEAD, filter)]


class Storage(exports.Storage):
    """What every storage has."""

    def open(self, config):
        global settings, connection
        made = parse(config)
        try:
            opened = sql.Connection.open(made.database, sql.Access.READ_WRITE)
        except Err as error:
            raise failed(error.value, "opening") from None
        if opened.dialect() is not sql.Dialect.SQLITE:
            raise outhaul.invalid_configuration("`database`: this storage is for SQLite")
        settings, connection = made, opened
        return storage.Description(strict_order=True, prefers_fused=True, wake=storage.WakeSource_DataVersion(made.database))

    def claim(self, request):
        return call("claiming", lambda now: claim(now, request))

    def settle(self, worker, settlements):
        return call("settling", lambda now: settle(now, worker, settlements))

    def extend(self, worker, ids, lease_ms):
        return call("renewing leases", lambda now: extend(now, worker, ids, lease_ms))

    def stats(self):
        return call("counting", lambda now: stats(now))


class StorageFused(exports.StorageFused):
    """One commit instead of two."""

    def settle_and_claim(self, settlements, request):
        # Arguments are worked out in their order: what is settled is settled before anything is claimed.
        return call("settling and claiming", lambda now: storage_fused.Turn(settle(now, request.worker, settlements), claim(now, request)))


class StorageAdmin(exports.StorageAdmin):
    """For the command line."""

    def schema(self):
        return f"CREATE TABLE IF NOT EXISTS {settings.table} (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;\n"

    def create_schema(self):
        try:
            connection.execute([_statement(self.schema())])
        except Err as error:
            raise failed(error.value, "creating the table") from None

    def enqueue(self, batch):
        return call("inserting", lambda now: enqueue(now, batch))

    def browse(self, filter, after, limit, with_messages):
        return call("browsing", lambda now: browse(now, filter, after, limit, with_messages))

    def requeue(self, filter):
        return call("requeueing", lambda now: requeue(now, filter))

    def discard(self, filter):
        return call("discarding", lambda now: discard(now, filter))

    def purge(self, older_than_ms, limit):
        return call("purging", lambda now: purge(now, older_than_ms, limit))
