"""Sends each message as one HTTP POST to the URL of its configuration."""

import json
import re
from urllib.parse import quote, urlsplit

import outhaul
from http_post import HttpError, post
from wit_world import exports

# What belongs to the connection, or is set here: not the message's to say.
OWN = {
    "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    "idempotency-key", "outhaul-topic", "outhaul-key", "outhaul-attempt", "outhaul-tombstone",
}  # fmt: skip

# Most bytes of a request's headers, each counted as its name, its value and 32 (RFC 9113 section 6.5.2). No server takes more by
# itself than 1 MiB, most take less, and the host stops a component that hands over too much.
MAX_HEADER_BYTES = 256 * 1024


class Settings:
    """The configuration, checked. Raises what `open` has to raise."""

    def __init__(self, config: str):
        table = json.loads(config)
        self.url = table.pop("url", None)
        self.timeout_ms = table.pop("timeout_ms", 10_000)
        for key in table:
            raise outhaul.invalid_configuration(f"`{key}`: unknown key; there are `url` and `timeout_ms`")
        if not isinstance(self.url, str) or not re.fullmatch(r"https?://[^/?#@\s]+([/?][^#\s]*)?", self.url):
            raise outhaul.invalid_configuration("`url`: must be an absolute http:// or https:// URL without user name or fragment")
        if type(self.timeout_ms) is not int or not 1 <= self.timeout_ms <= 600_000:
            raise outhaul.invalid_configuration("`timeout_ms`: must be a whole number of milliseconds from 1 to 600000")
        self.where = urlsplit(self.url).netloc


def headers_of(message: outhaul.Message):
    headers = [("idempotency-key", message.id.encode()), ("outhaul-topic", quote(message.topic, safe="").encode())]
    if message.key is not None:
        headers.append(("outhaul-key", quote(message.key, safe="").encode()))
    headers.append(("outhaul-attempt", str(message.attempts).encode()))
    if message.payload is None:
        headers.append(("outhaul-tombstone", b"true"))
    headers += [(name, value) for name, value in message.headers if name.lower() not in OWN]
    if not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("content-type", b"application/octet-stream"))
    return headers


# Set by `open`. The host's calls each get an object of their own, so what lasts is kept here.
settings: Settings


class Publisher(exports.Publisher):
    """What the host calls."""

    def open(self, config):
        global settings
        settings = Settings(config)
        outhaul.info("http-python is open", destination=settings.where)

    def publish(self, batch, deadline_ms):
        outcomes = outhaul.in_key_order(batch, deadline_ms, send if batch.destinations is None else refuse)
        undelivered = sum(outcome != outhaul.DELIVERED for outcome in outcomes)
        if undelivered:
            outhaul.warn("not all messages were delivered", messages=len(outcomes), open=undelivered)
        return outcomes


def refuse(_message: outhaul.Message, _left_ms: int):
    """A delivery of a fan-out has an address of its own: the configured one would be the wrong place."""
    detail = "this publisher sends to its own `url` only, not to the destinations of a fan-out"
    return outhaul.retry("invalid-configuration", detail)


def send(message: outhaul.Message, left_ms: int):
    where = settings.where
    headers = headers_of(message)
    if sum(len(name) + len(value) + 32 for name, value in headers) > MAX_HEADER_BYTES:
        return outhaul.reject("too-large", f"the headers are over {MAX_HEADER_BYTES // 1024} KiB")
    try:
        timeout_ms = min(settings.timeout_ms, left_ms)
        status, retry_after = post(settings.url, headers, message.payload or b"", timeout_ms)
    except HttpError as error:
        return outhaul.retry(error.code, f"{where}: {error}")
    except ValueError as error:
        return outhaul.reject("invalid-message", f"a header cannot be sent: {error}")
    return outhaul.outcome_of(status, retry_after, where)
