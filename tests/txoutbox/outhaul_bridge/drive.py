"""A session of ``outhaul plugin drive``: requests and answers as JSON lines, in any order of answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


class DriveError(Exception):
    """The adapter, or the host in its place, says that a request did not go well."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Drive:
    """One process. Bound to no event loop: a thread reads the answers."""

    def __init__(self, command: Sequence[str]) -> None:
        # Its log goes to stderr, which pytest shows where a test fails.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> int:
        """Ends the session; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join()
        return self._process.wait()

    async def call(self, name: str, /, *, instance: str = "main", **arguments: Any) -> Any:
        """Sends a request and waits for its answer."""
        return await asyncio.wrap_future(self._send(name, instance, arguments))

    def _send(self, name: str, instance: str, arguments: dict[str, Any]) -> Future[Any]:
        assert self._process.stdin is not None
        answer: Future[Any] = Future()
        with self._lock:
            if self._ended:
                raise ConnectionError("outhaul plugin drive has ended")
            number = next(self._ids)
            self._waiting[number] = answer
            request = {"id": number, "instance": instance, "call": name, **arguments}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                # An answer to no request would be a fault of the session itself: let the reader end with it.
                waiting = self._waiting.pop(answer["id"])
            if "error" in answer:
                error = answer["error"]
                waiting.set_exception(DriveError(error["code"], error["detail"]))
            else:
                waiting.set_result(answer["ok"])
        with self._lock:
            self._ended = True
            for waiting in self._waiting.values():
                waiting.set_exception(ConnectionError("outhaul plugin drive has ended"))
            self._waiting.clear()
