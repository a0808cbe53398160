"""One HTTP POST by wasi:http, as a function that blocks."""

import re
from typing import List, Optional, Tuple
from urllib.parse import urlsplit

from componentize_py_types import Err, Ok
from wit_world.imports import outgoing_handler, types

# wasi:io/streams takes so many bytes in one blocking write.
_CHUNK = 4096


class HttpError(Exception):
    """There was no answer. `code` is a `failure-code` of outhaul."""

    def __init__(self, code: str, detail: str):
        super().__init__(detail)
        self.code = code


def post(url: str, headers: List[Tuple[str, bytes]], body: bytes, timeout_ms: int) -> Tuple[int, Optional[str]]:
    """Sends `body` and returns the status and the header Retry-After. Raises HttpError, or ValueError for a header that cannot be sent."""
    try:
        fields = types.Fields.from_list(headers)
    except Err as error:
        raise ValueError(_words(error.value)) from None
    parts = urlsplit(url)
    request = types.OutgoingRequest(fields)
    request.set_method(types.Method_Post())
    request.set_scheme(types.Scheme_Https() if parts.scheme == "https" else types.Scheme_Http())
    request.set_authority(parts.netloc)
    request.set_path_with_query((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    options = types.RequestOptions()
    for limit in (options.set_connect_timeout, options.set_first_byte_timeout, options.set_between_bytes_timeout):
        limit(timeout_ms * 1_000_000)
    try:
        outgoing = request.body()
        waiting = outgoing_handler.handle(request, options)
        with waiting:
            with outgoing.write() as stream:
                for at in range(0, len(body), _CHUNK):
                    stream.blocking_write_and_flush(body[at : at + _CHUNK])
            types.OutgoingBody.finish(outgoing, None)
            with waiting.subscribe() as pollable:
                pollable.block()
            answer = waiting.get()
    except Err as error:
        raise _no_answer(error.value) from None
    match answer:
        case Ok(Ok(response)):
            with response, response.headers() as found:
                after = found.get("retry-after")
                return response.status(), after[0].decode("latin-1") if after else None
        case Ok(Err(error)):
            raise _no_answer(error)
    raise HttpError("network", "the answer was taken already")


def _words(case: object) -> str:
    """`ErrorCode_ConnectionRefused()` is `connection refused` to a person."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(case).__name__.partition("_")[2]).lower() or "stream closed"


def _no_answer(error: object) -> HttpError:
    if isinstance(error, (types.ErrorCode_HttpRequestDenied, types.ErrorCode_DestinationIpProhibited)):
        return HttpError("invalid-configuration", "the host does not allow this request; its log has the line to add")
    name = _words(error)
    return HttpError("timeout" if "timeout" in name else "network", name)
