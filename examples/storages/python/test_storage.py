"""The storage outside of the sandbox, clause by clause, on Python's own SQLite."""

import json
import sqlite3
import unittest
from unittest import mock

import outhaul
import storage
from componentize_py_types import Err
from wit_world.exports import storage as exported
from wit_world.exports import storage_admin
from wit_world.imports import outbox, sql


class Database:
    """`sql.connection` and `sql.transaction` of the host, with a clock that tests move."""

    def __init__(self):
        self.sqlite = sqlite3.connect(":memory:", isolation_level=None)
        self.now = 1_000_000

    def dialect(self):
        return sql.Dialect.SQLITE

    def execute(self, statements):
        return [self.run(statement) for statement in statements]

    def begin(self, statements):
        self.sqlite.execute("BEGIN IMMEDIATE")
        return self, self.execute(statements)

    def commit(self, statements):
        rows = self.execute(statements)
        self.sqlite.execute("COMMIT")
        return rows

    def run(self, statement):
        if "julianday" in statement.sql:
            return sql.Rows(0, [sql.Values_Integers(sql.Integers([self.now], b""))])
        cursor = self.sqlite.execute(statement.sql, [parameter.value for parameter in statement.parameters])
        rows = cursor.fetchall()
        columns = [sql.Values_Texts(outhaul.column(row[at] for row in rows)) for at in range(len(statement.columns))]
        return sql.Rows(max(cursor.rowcount, 0), columns)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sqlite.execute("ROLLBACK")


def messages(*given):
    headers = [header for message in given for header in message.get("headers", [])]
    ends, end = [], 0
    for message in given:
        end += len(message.get("headers", []))
        ends.append(end)
    return outbox.Batch(
        ids=outhaul.column(message.get("id") for message in given),
        topics=outhaul.column(message.get("topic", "t") for message in given),
        keys=outhaul.column(message.get("key") for message in given),
        header_names=outhaul.column(name for name, _ in headers),
        header_values=outhaul.column(value for _, value in headers),
        header_ends=ends,
        payloads=outhaul.column(message.get("payload") for message in given),
        attempts=[0] * len(given),
        created_at=[0] * len(given),
        destinations=None,
    )


ANY = storage_admin.Filter(None, None, [])


class StorageTest(unittest.TestCase):
    def setUp(self):
        self.database = Database()
        for target, stand_in in [
            ("storage.sql.Connection.open", lambda *_: self.database),
            ("storage.sql.Transaction.commit", lambda transaction, statements: transaction.commit(statements)),
        ]:
            patch = mock.patch(target, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        self.storage, self.fused, self.admin = storage.Storage(), storage.StorageFused(), storage.StorageAdmin()
        self.description = self.storage.open(json.dumps({"database": "main"}))
        self.admin.create_schema()

    def enqueue(self, *given):
        return self.admin.enqueue(messages(*given))

    def request(self, worker="w", limit=10, max_bytes=1000, max_attempts=0, max_message_bytes=1000):
        return exported.ClaimRequest(worker, limit, max_bytes, 5_000, max_attempts, max_message_bytes)

    def claim(self, **options):
        return [message.id for message in outhaul.messages(self.storage.claim(self.request(**options)).batch)]

    def settle(self, verdict, *ids, worker="w"):
        return self.storage.settle(worker, [exported.Settlement(verdict, outhaul.column(ids))])

    def retry(self, delay_ms, detail="no"):
        return exported.Verdict_Retry(exported.Retry(outhaul.failure("network", detail), delay_ms))

    def rows(self):
        return {row.id: row for row in self.admin.browse(ANY, None, 100, False).rows}

    def test_what_goes_in_comes_out(self):
        headers = [("a", b"1"), ("a", b"\xff")]
        ids = self.enqueue({"key": "k\0", "headers": headers, "payload": b"\0\xff"}, {"id": "mine", "payload": b""}, {})
        self.assertEqual(ids, ["1", "mine", "3"])
        first, second, third = outhaul.messages(self.storage.claim(self.request()).batch)
        self.assertEqual((first.key, first.headers, first.payload, first.attempts), ("k\0", headers, b"\0\xff", 1))
        self.assertEqual((second.key, second.payload, third.payload), (None, b"", None))
        self.assertEqual(first.created_at, self.database.now)
        with self.assertRaises(Err):
            self.enqueue({"id": "mine"})

    def test_a_number_that_was_given_as_an_id_is_passed_over(self):
        self.assertEqual(self.enqueue({"id": "2"}, {}, {}), ["2", "3", "4"])
        self.assertEqual(self.enqueue({"id": "5"}), ["5"])
        self.assertEqual(self.enqueue({}), ["6"])

    def test_an_empty_table_gives_an_empty_batch(self):
        claimed = self.storage.claim(self.request())
        self.assertEqual((len(claimed.batch.ids.ends), claimed.refused, claimed.unfinished), (0, [], False))

    def test_claims_do_not_overlap_and_keep_the_order_of_a_key(self):
        self.enqueue({"key": "a"}, {"key": "a"}, {"key": "b"}, {})
        self.assertEqual(self.claim(limit=1), ["1"])
        # The second of `a` is held back by the lease on the first.
        self.assertEqual(self.claim(worker="v"), ["3", "4"])
        self.assertEqual(self.claim(), [])
        self.assertEqual(self.settle(exported.Verdict_Delivered(), "1"), [])
        self.assertEqual(self.claim(), ["2"])

    def test_a_waiting_head_holds_back_its_key_until_its_delay_is_over(self):
        self.enqueue({"key": "a"}, {"key": "a"})
        self.claim(limit=1)
        self.settle(self.retry(100, "text with \0 and ☃"), "1")
        self.assertEqual(self.claim(), [])
        self.assertEqual(self.rows()["1"].due_in_ms, 100)
        self.database.now += 100
        self.assertEqual(self.claim(), ["1", "2"])
        self.assertEqual((self.rows()["1"].attempts, self.rows()["1"].last_error), (2, "text with \0 and ☃"))

    def test_a_release_gives_the_attempt_back(self):
        self.enqueue({})
        self.claim()
        self.settle(exported.Verdict_Release(50), "1")
        self.assertEqual((self.rows()["1"].attempts, self.rows()["1"].due_in_ms), (0, 50))

    def test_a_lease_that_ran_out_counts_and_ends_dead_at_the_limit(self):
        self.enqueue({"key": "a"}, {"key": "a"})
        self.assertEqual(self.claim(limit=1), ["1"])
        self.database.now += 5_000
        claimed = self.storage.claim(self.request(max_attempts=1))
        self.assertEqual([refusal.id for refusal in claimed.refused], ["1"])
        self.assertEqual([message.id for message in outhaul.messages(claimed.batch)], ["2"])
        self.assertIs(self.rows()["1"].state, storage_admin.RowState.DEAD)

    def test_late_writes_change_nothing(self):
        self.enqueue({}, {})
        self.claim(worker="old")
        self.database.now += 5_000
        self.claim(worker="new")
        for verdict in (exported.Verdict_Delivered(), self.retry(0), exported.Verdict_Release(0)):
            self.assertEqual(self.settle(verdict, "1", "2", "gone", worker="old"), ["1", "2", "gone"])
        self.assertEqual(self.storage.extend("old", outhaul.column(["1"]), 9_000), ["1"])
        self.assertEqual({row.state for row in self.rows().values()}, {storage_admin.RowState.LEASED})
        self.assertEqual(self.settle(exported.Verdict_Delivered(), "1", worker="new"), [])
        self.assertEqual(self.settle(exported.Verdict_Delivered(), "1", worker="new"), ["1"])

    def test_a_lease_is_extended(self):
        self.enqueue({})
        self.claim()
        self.assertEqual(self.storage.extend("w", outhaul.column(["1"]), 9_000), [])
        self.database.now += 8_000
        self.assertEqual(self.claim(worker="v"), [])

    def test_sizes_are_kept(self):
        self.enqueue({"payload": b"x" * 60}, {"payload": b"y" * 50}, {"payload": b"z" * 500})
        self.assertEqual(self.claim(max_bytes=100), ["1"])
        claimed = self.storage.claim(self.request(max_message_bytes=100))
        self.assertEqual([refusal.id for refusal in claimed.refused], ["3"])
        # Larger than max-bytes, but the first: it has to go some time.
        self.settle(exported.Verdict_Release(0), "1")
        self.assertEqual(self.claim(max_bytes=1), ["1"])

    def test_settling_and_claiming_are_one(self):
        self.enqueue({"key": "a"}, {"key": "a"})
        self.claim(limit=1)
        turn = self.fused.settle_and_claim(
            [exported.Settlement(exported.Verdict_Delivered(), outhaul.column(["1", "9"]))], self.request()
        )
        self.assertEqual((turn.lost, list(outhaul.messages(turn.claimed.batch))[0].id), (["9"], "2"))
        turn = self.fused.settle_and_claim([exported.Settlement(self.retry(0), outhaul.column(["2"]))], self.request())
        self.assertEqual([message.attempts for message in outhaul.messages(turn.claimed.batch)], [2])

    def test_counts(self):
        self.enqueue({}, {}, {}, {})
        self.claim(limit=2)
        self.settle(exported.Verdict_Dead(outhaul.failure("network", "no")), "1")
        self.database.now += 10
        counts = self.storage.stats()
        self.assertEqual((counts.pending, counts.due, counts.leased, counts.dead, counts.oldest_pending_ms), (3, 2, 1, 1, 10))

    def test_the_command_line(self):
        self.enqueue({"topic": "a"}, {"topic": "b"}, {"topic": "a"})
        self.claim()
        self.settle(exported.Verdict_Dead(outhaul.failure("network", "no")), "1", "2")
        self.settle(exported.Verdict_Delivered(), "3")
        page = self.admin.browse(ANY, None, 2, True)
        self.assertEqual([row.id for row in page.rows], ["1", "2"])
        self.assertEqual([message.topic for message in outhaul.messages(page.messages)], ["a", "b"])
        page = self.admin.browse(ANY, page.next, 2, False)
        self.assertEqual(([row.id for row in page.rows], page.next, page.messages), (["3"], None, None))
        topic_a = storage_admin.Filter(None, "a", [])
        self.assertEqual(self.admin.requeue(topic_a), 1)
        self.assertEqual((self.rows()["1"].state, self.rows()["1"].attempts), (storage_admin.RowState.PENDING, 0))
        self.assertEqual(self.admin.discard(storage_admin.Filter(None, None, ["1", "2"])), 1)
        self.assertEqual(self.admin.purge(1, 10), 0)
        self.database.now += 1
        self.assertEqual((self.admin.purge(1, 10), self.admin.purge(1, 10)), (1, 0))
        self.assertEqual(list(self.rows()), ["1"])

    def test_a_failed_call_changes_nothing(self):
        self.enqueue({})
        with mock.patch("storage.batch_of", side_effect=RuntimeError), self.assertRaises(RuntimeError):
            self.storage.claim(self.request())
        self.assertEqual(self.claim(), ["1"])

    def test_errors_of_the_configuration_name_the_key(self):
        for config, key in [({}, "`database`"), ({"database": "m", "table": "a b"}, "`table`"), ({"database": "m", "tabel": 1}, "`tabel`")]:
            with self.assertRaises(Err) as raised:
                self.storage.open(json.dumps(config))
            self.assertTrue(raised.exception.value.detail.startswith(key))


if __name__ == "__main__":
    unittest.main()
