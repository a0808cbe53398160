"""The publisher outside of the sandbox: `post` and the host are stood in for."""

import json
import unittest
from unittest import mock

import http_post
import outhaul
import publisher
from componentize_py_types import Err
from wit_world.imports import outbox


def batch(*messages):
    headers = [header for message in messages for header in message.get("headers", [])]
    ends, end = [], 0
    for message in messages:
        end += len(message.get("headers", []))
        ends.append(end)
    return outbox.Batch(
        ids=outhaul.column(str(index) for index in range(len(messages))),
        topics=outhaul.column(message.get("topic", "orders") for message in messages),
        keys=outhaul.column(message.get("key") for message in messages),
        header_names=outhaul.column(name for name, _ in headers),
        header_values=outhaul.column(value for _, value in headers),
        header_ends=ends,
        payloads=outhaul.column(message.get("payload") for message in messages),
        attempts=[1] * len(messages),
        created_at=[0] * len(messages),
        destinations=None,
    )


class PublisherTest(unittest.TestCase):
    def setUp(self):
        self.posted, self.reports = [], []
        self.answers = {}
        for target, stand_in in [
            ("publisher.post", self.post),
            ("outhaul.progress.report", lambda index, outcome: self.reports.append((index, outcome))),
            ("outhaul.log.write", lambda *_: None),
        ]:
            patch = mock.patch(target, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        publisher.Publisher().open(json.dumps({"url": "http://h.example/in"}))

    def post(self, url, headers, body, timeout_ms):
        self.posted.append((headers, body))
        answer = self.answers.get(dict(headers)["outhaul-topic"].decode(), (204, None))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def publish(self, *messages):
        return publisher.Publisher().publish(batch(*messages), 10_000)

    def test_a_message_has_everything(self):
        headers = [("x-tag", "one"), ("x-tag", "two"), ("Host", "evil")]
        outcomes = self.publish({"key": "Zoë", "payload": b"\0\xff", "headers": headers}, {"payload": b""}, {})
        self.assertEqual(outcomes, [outhaul.DELIVERED] * 3)
        (first, body), (second, empty), (third, none) = self.posted
        self.assertEqual((body, empty, none), (b"\0\xff", b"", b""))
        self.assertEqual([value for name, value in first if name == "x-tag"], [b"one", b"two"])
        self.assertIn(("outhaul-key", b"Zo%C3%AB"), first)
        self.assertNotIn("Host", dict(first))
        self.assertNotIn("outhaul-tombstone", dict(second))
        self.assertIn(("outhaul-tombstone", b"true"), third)

    def test_a_failure_holds_back_its_key_and_only_that(self):
        self.answers = {"busy": (429, "3"), "bad": (400, None), "away": http_post.HttpError("network", "refused")}
        outcomes = self.publish(
            {"key": "a", "topic": "busy"}, {"key": "b"}, {"key": "a"}, {"topic": "bad"}, {"topic": "away"}
        )
        self.assertEqual(
            outcomes,
            [
                outhaul.retry("throttled", "h.example answered 429", 3000),
                outhaul.DELIVERED,
                outhaul.HELD,
                outhaul.reject("invalid-message", "h.example answered 400"),
                outhaul.retry("network", "h.example: refused"),
            ],
        )
        self.assertEqual(self.reports, list(enumerate(outcomes)))

    def test_headers_that_no_server_takes_are_too_large(self):
        outcomes = self.publish({"headers": [("x", "x" * publisher.MAX_HEADER_BYTES)]}, {})
        self.assertEqual(outcomes, [outhaul.reject("too-large", "the headers are over 256 KiB"), outhaul.DELIVERED])
        self.assertEqual(len(self.posted), 1)

    def test_errors_of_the_configuration_name_the_key(self):
        for config, key in [
            ({}, "`url`"), ({"url": "ftp://h/"}, "`url`"), ({"url": "http://a@h/"}, "`url`"),
            ({"url": "http://h/", "timeout_ms": 0}, "`timeout_ms`"), ({"url": "http://h/", "urll": 1}, "`urll`"),
        ]:  # fmt: skip
            with self.assertRaises(Err) as raised:
                publisher.Publisher().open(json.dumps(config))
            self.assertTrue(raised.exception.value.detail.startswith(key), raised.exception.value.detail)


if __name__ == "__main__":
    unittest.main()
