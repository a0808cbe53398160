-- What the server itself can do: claim and settle in a loop inside it, on one connection, with nothing sent to anybody.
--
-- Run by `cargo xtask peers`. By hand: psql -f limit.sql, then
--   CALL limit_fill(100000, 1000, 256);      rows, keys, bytes of a payload; by itself too, for it commits
-- then `SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off;` (what a relay sets for its own connections), and, as a
-- statement by itself because it commits, one of
--   CALL limit_apart(500, true);    claim, commit, mark as done, commit
--   CALL limit_fused(500);          mark the last batch as done and claim the next one in one transaction
--   CALL limit_apart(500, false);   as the first, without regard to keys
-- Rows divided by the time of the call are messages a second. All three read the messages that they claim.
--
-- `available_at` is due time and end of lease in one. Ordered claims take a key's rows as an unbroken run from its first waiting one:
-- scan in the order of ids, lock what can be locked, and keep of each key what comes before the first row that could not be.

CREATE TABLE limit_outbox (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text        NOT NULL,
    key          text,
    status       text        NOT NULL DEFAULT 'pending',
    attempts     integer     NOT NULL DEFAULT 0,
    available_at timestamptz NOT NULL DEFAULT now(),
    leased_by    text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    done_at      timestamptz,
    last_error   text,
    headers      text,
    payload      bytea
);
CREATE INDEX limit_outbox_pending ON limit_outbox (id) WHERE status = 'pending';
CREATE INDEX limit_outbox_key_pending ON limit_outbox (key, id) WHERE status = 'pending';

-- At least so many characters: Base64 of SHA-256 of 0, 1 and so on. The peers' programs make the same.
CREATE FUNCTION limit_noise(size integer) RETURNS bytea LANGUAGE sql AS $$
    SELECT convert_to(replace(encode(string_agg(sha256(convert_to(number::text, 'UTF8')), NULL ORDER BY number), 'base64'),
                              E'\n', ''), 'UTF8')
    FROM generate_series(0, size / 32) number
$$;

-- In transactions of 500 rows, as the peers' programs fill their tables. A payload is a JSON string: other characters in each row, those
-- behind the row before, and the same again after a mebibyte.
CREATE PROCEDURE limit_fill(messages integer, keys integer, bytes integer) LANGUAGE plpgsql AS $$
DECLARE
    period CONSTANT bigint := 1048576;
    room CONSTANT integer := bytes - 2;
    noise CONSTANT bytea := limit_noise(1048576 + room);
BEGIN
    FOR head IN 0 .. messages - 1 BY 500 LOOP
        INSERT INTO limit_outbox (topic, key, payload)
        SELECT 'bench', 'k' || number % keys,
               '"'::bytea || substring(noise FROM (number * room % period)::integer + 1 FOR room) || '"'::bytea
        FROM generate_series(head::bigint, least(head + 500, messages) - 1) number;
        COMMIT;
    END LOOP;
END $$;

-- Leases the next rows and returns their ids; NULL where nothing waits.
CREATE FUNCTION limit_claim(batch integer) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    scanned bigint[];
    owners  text[];
    claimed bigint[];
BEGIN
    SELECT array_agg(s.id), array_agg(s.key) INTO scanned, owners
    FROM (SELECT id, key, available_at FROM limit_outbox WHERE status = 'pending' ORDER BY id LIMIT batch) s
    WHERE s.available_at <= now();
    IF scanned IS NULL THEN
        RETURN NULL;
    END IF;
    WITH candidate AS (
        SELECT * FROM unnest(scanned, owners) AS c (id, key)
    ), locked AS MATERIALIZED (
        SELECT o.id FROM limit_outbox o
        WHERE o.id = ANY (scanned) AND o.status = 'pending' AND o.available_at <= now()
        ORDER BY o.id FOR UPDATE SKIP LOCKED
    ), run AS (
        SELECT c.id, l.id IS NOT NULL AS mine, bool_and(l.id IS NOT NULL) OVER (PARTITION BY c.key ORDER BY c.id) AS unbroken, c.key
        FROM candidate c LEFT JOIN locked l USING (id)
    ), leased AS (
        UPDATE limit_outbox o SET attempts = o.attempts + 1, leased_by = 'limit', available_at = now() + interval '60 s'
        WHERE o.id = ANY (ARRAY(SELECT run.id FROM run WHERE CASE WHEN run.key IS NULL THEN run.mine ELSE run.unbroken END))
        RETURNING o.id, o.topic, o.key, o.payload, o.attempts
    )
    SELECT array_agg(leased.id) INTO claimed FROM leased;
    RETURN coalesce(claimed, '{}');
END $$;

CREATE FUNCTION limit_claim_unordered(batch integer) RETURNS bigint[] LANGUAGE sql AS $$
    WITH next AS MATERIALIZED (
        SELECT id FROM limit_outbox WHERE status = 'pending' AND available_at <= now() ORDER BY id LIMIT batch FOR UPDATE SKIP LOCKED
    ), leased AS (
        UPDATE limit_outbox o SET attempts = o.attempts + 1, leased_by = 'limit', available_at = now() + interval '60 s'
        WHERE o.id = ANY (ARRAY(SELECT id FROM next))
        RETURNING o.id, o.topic, o.key, o.payload, o.attempts
    )
    SELECT array_agg(id) FROM leased
$$;

CREATE PROCEDURE limit_settle(claimed bigint[]) LANGUAGE sql AS $$
    UPDATE limit_outbox SET status = 'done', done_at = now(), leased_by = NULL WHERE id = ANY (claimed) AND leased_by = 'limit'
$$;

CREATE PROCEDURE limit_apart(batch integer, ordered boolean) LANGUAGE plpgsql AS $$
DECLARE
    claimed bigint[];
BEGIN
    LOOP
        claimed := CASE WHEN ordered THEN limit_claim(batch) ELSE limit_claim_unordered(batch) END;
        EXIT WHEN claimed IS NULL;
        COMMIT;
        CALL limit_settle(claimed);
        COMMIT;
    END LOOP;
END $$;

CREATE PROCEDURE limit_fused(batch integer) LANGUAGE plpgsql AS $$
DECLARE
    claimed bigint[];
BEGIN
    LOOP
        IF claimed IS NOT NULL THEN
            CALL limit_settle(claimed);
        END IF;
        claimed := limit_claim(batch);
        COMMIT;
        EXIT WHEN claimed IS NULL;
    END LOOP;
END $$;
