"""The batch of columns as messages, outcomes, and the loop that keeps the order of each key. Copy this file as it is."""

import re
import time
from dataclasses import dataclass
from typing import Callable, Iterator, List, Optional, Tuple

from componentize_py_types import Err
from wit_world.imports import log, outbox

try:
    from wit_world.imports import progress
except ImportError:  # a storage: there is nothing to report
    progress = None


def value(column: outbox.Column, index: int) -> Optional[bytes]:
    """Value `index` of a column; None: none."""
    if column.nulls and column.nulls[index] == 1:
        return None
    return column.data[column.ends[index - 1] if index else 0 : column.ends[index]]


def text(column: outbox.Column, index: int) -> Optional[str]:
    """Value `index` of a column of text; the host has checked that it is UTF-8."""
    data = value(column, index)
    return None if data is None else data.decode()


def column(values) -> outbox.Column:
    """A column of these values: bytes, str or None."""
    values = [item.encode() if isinstance(item, str) else item for item in values]
    ends, end = [], 0
    for item in values:
        end += len(item or b"")
        ends.append(end)
    nulls = bytes(item is None for item in values) if None in values else b""
    return outbox.Column(data=b"".join(item or b"" for item in values), ends=ends, nulls=nulls)


@dataclass(frozen=True)
class Message:
    """One message: a view into a batch, nothing is copied until asked for."""

    batch: outbox.Batch
    index: int

    @property
    def id(self) -> str:
        return text(self.batch.ids, self.index)

    @property
    def topic(self) -> str:
        return text(self.batch.topics, self.index)

    @property
    def key(self) -> Optional[str]:
        """None: independent of all others."""
        return text(self.batch.keys, self.index)

    @property
    def payload(self) -> Optional[bytes]:
        """The exact stored bytes; None: SQL NULL, a tombstone, which is not the same as empty."""
        return value(self.batch.payloads, self.index)

    @property
    def headers(self) -> List[Tuple[str, bytes]]:
        """In order, duplicates kept."""
        ends = self.batch.header_ends
        places = range(ends[self.index - 1] if self.index else 0, ends[self.index])
        return [(text(self.batch.header_names, at), value(self.batch.header_values, at)) for at in places]

    @property
    def attempts(self) -> int:
        """Claims so far, this one included."""
        return self.batch.attempts[self.index]

    @property
    def created_at(self) -> Optional[int]:
        """Unix milliseconds; None: unknown."""
        return self.batch.created_at[self.index] or None


def messages(batch: outbox.Batch) -> Iterator[Message]:
    """Every message of a batch, in its order."""
    return (Message(batch, index) for index in range(len(batch.ids.ends)))


_CODES = {
    "network": outbox.FailureCode_Network,
    "timeout": outbox.FailureCode_Timeout,
    "throttled": outbox.FailureCode_Throttled,
    "unavailable": outbox.FailureCode_Unavailable,
    "unauthorized": outbox.FailureCode_Unauthorized,
    "invalid-message": outbox.FailureCode_InvalidMessage,
    "too-large": outbox.FailureCode_TooLarge,
    "destination-gone": outbox.FailureCode_DestinationGone,
    "invalid-configuration": outbox.FailureCode_InvalidConfiguration,
    "signing-unavailable": outbox.FailureCode_SigningUnavailable,
    "integrity": outbox.FailureCode_Integrity,
}


def failure(code: str, detail: str, retry_after_ms: Optional[int] = None) -> outbox.Failure:
    """A failure, told to a person: no payloads, no secrets. `code` is a name of WIT's `failure-code`, or a word of your own."""
    made = _CODES[code]() if code in _CODES else outbox.FailureCode_Other(code)
    return outbox.Failure(code=made, detail=detail, retry_after_ms=retry_after_ms)


def invalid_configuration(detail: str) -> Err:
    """Raise it from `open`: the configuration is wrong, and `detail` names the key."""
    return Err(failure("invalid-configuration", detail))


DELIVERED = outbox.Outcome_Delivered()
"""The destination has taken it."""
HELD = outbox.Outcome_Held()
"""Not tried: costs no attempt."""


def retry(code: str, detail: str, retry_after_ms: Optional[int] = None) -> outbox.Outcome_Retry:
    """It may succeed later."""
    return outbox.Outcome_Retry(failure(code, detail, retry_after_ms))


def reject(code: str, detail: str) -> outbox.Outcome_Reject:
    """It can never succeed."""
    return outbox.Outcome_Reject(failure(code, detail))


def info(line: str, **fields) -> None:
    """A line of the host's log."""
    log.write(log.Level.INFO, line, [(name, str(field)) for name, field in fields.items()])


def warn(line: str, **fields) -> None:
    """A line of the host's log that somebody should see."""
    log.write(log.Level.WARN, line, [(name, str(field)) for name, field in fields.items()])


def in_key_order(batch: outbox.Batch, deadline_ms: int, send: Callable[[Message, int], outbox.Outcome]) -> List[outbox.Outcome]:
    """Sends every message with `send(message, left_ms)`, one after the other, and none of a key after one that was not delivered.

    Each outcome is reported as soon as it is known. What cannot be started in time stays untried.
    """
    # A tenth, at most 250 ms, is kept for the way back to the host.
    end = time.monotonic() + (deadline_ms - min(deadline_ms // 10, 250)) / 1000
    stopped, outcomes = set(), []
    for message in messages(batch):
        key = message.key
        left_ms = int((end - time.monotonic()) * 1000)
        outcome = HELD if key in stopped or left_ms <= 0 else send(message, left_ms)
        if key is not None and outcome != DELIVERED:
            stopped.add(key)
        progress.report(message.index, outcome)
        outcomes.append(outcome)
    return outcomes


def outcome_of(status: int, retry_after: Optional[str], where: str) -> outbox.Outcome:
    """What an HTTP answer means; `where` names the destination without its path, which may hold a token."""
    detail = f"{where} answered {status}"
    # Seconds; the form with a date is left out here, and counts as absent.
    after_ms = int(retry_after) * 1000 if re.fullmatch(r"[0-9]{1,9}", retry_after or "") else None
    if 200 <= status < 300:
        return DELIVERED
    if status == 408:
        return retry("timeout", detail, after_ms)
    if status == 429:
        return retry("throttled", detail, after_ms)
    if status == 425 or 500 <= status < 600:
        return retry("unavailable", detail, after_ms)
    codes = {400: "invalid-message", 422: "invalid-message", 410: "destination-gone"}
    codes |= dict.fromkeys((401, 403, 407), "unauthorized") | dict.fromkeys((413, 414, 431), "too-large")
    return reject(codes.get(status, f"http-{status}"), detail)
