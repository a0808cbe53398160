import io.debezium.connector.postgresql.Module;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One run of Debezium embedded with its outbox event router: a replication slot, then rows, then the engine, which reads them from the log.
 *
 * <p>PEER_DATABASE is the URL of a PostgreSQL database whose server has wal_level=logical. With PEER_KAFKA (host:port) the events go to
 * the topic PEER_TOPIC, acknowledged by all replicas; without, nowhere. Arguments: rows, keys, bytes of a payload. Prints one line of JSON.
 *
 * <p>As many rows again go first and do not count: a program that has run for days has its code compiled.
 */
public final class Relay {
    private static final String SLOT = "debezium_peer";
    /** Rows of a transaction, as those of the other tables are written. */
    private static final int TRANSACTION = 500;
    /** Payloads have the same characters again after so many bytes. */
    private static final int PERIOD = 1 << 20;

    /** Rows that count, and rows that go before them. */
    private final int rows;
    private final Sink sink;
    private final CountDownLatch end = new CountDownLatch(1);
    private final AtomicReference<String> fault = new AtomicReference<>();
    /** All so far, and those of them before the clock was started. */
    private int sent;
    private int before;
    private long started;
    private long ended;

    private Relay(int rows, Sink sink) {
        this.rows = rows;
        this.sink = sink;
    }

    /** Where a batch of events goes: it has arrived when this returns. */
    private interface Sink extends AutoCloseable {
        void send(List<ChangeEvent<String, String>> events) throws Exception;

        @Override
        void close();
    }

    public static void main(String[] arguments) throws Exception {
        int rows = Integer.parseInt(arguments[0]);
        int keys = Integer.parseInt(arguments[1]);
        int bytes = Integer.parseInt(arguments[2]);
        URI database = URI.create(System.getenv("PEER_DATABASE"));
        String kafka = System.getenv("PEER_KAFKA");
        String topic = System.getenv("PEER_TOPIC");

        String server = prepare(database, rows, keys, bytes);
        int status = 0;
        try (Sink sink = kafka == null ? nowhere() : toKafka(kafka)) {
            Relay relay = new Relay(rows, sink);
            relay.run(properties(database, topic));
            if (relay.fault.get() != null) {
                System.err.println(relay.fault.get());
                status = 1;
            } else {
                System.out.println(relay.report(server));
            }
        } finally {
            dropSlot(database);
        }
        System.exit(status);
    }

    private void run(Properties properties) throws Exception {
        DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class))
                        .using(properties)
                        .using((success, message, error) -> {
                            if (!success) {
                                fault.compareAndSet(null, message + (error == null ? "" : ": " + error));
                            }
                            end.countDown();
                        })
                        .notifying(this::handle)
                        .build();
        ExecutorService thread = Executors.newSingleThreadExecutor();
        thread.execute(engine);
        end.await();
        engine.close();
        thread.shutdown();
        if (!thread.awaitTermination(30, TimeUnit.SECONDS)) {
            fault.compareAndSet(null, "the engine did not end");
        }
    }

    private void handle(
            List<ChangeEvent<String, String>> events, DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        try {
            sink.send(events);
        } catch (Exception error) {
            fault.compareAndSet(null, error.toString());
            end.countDown();
            return;
        }
        for (ChangeEvent<String, String> event : events) {
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
        sent += events.size();
        if (sent >= rows && before == 0) {
            before = sent;
            started = System.nanoTime();
        }
        if (sent >= 2 * rows) {
            ended = System.nanoTime();
            if (sent == before) {
                fault.compareAndSet(null, "so few rows are a single batch of its own: nothing to measure");
            }
            end.countDown();
        }
    }

    /**
     * The log is read and never written, so what was handled is what is settled. Its batches do not end where the rows begin that count: the
     * time is that of all rows behind the first such batch, for as many as count.
     */
    private String report(String server) {
        String format = "{\"sent\": %d, \"settled\": %d, \"seconds\": %.6f, \"versions\": "
                + "{\"Debezium\": \"%s\", \"Java\": \"%s\", \"PostgreSQL (Debezium)\": \"%s\"}}";
        String version = Module.version();
        double seconds = (ended - started) / 1e9 * rows / (sent - before);
        return String.format(Locale.ROOT, format, sent - rows, sent - rows, seconds, version, Runtime.version(), server);
    }

    /** The table with Debezium's own columns, the slot before the rows, the rows. Returns the server's version. */
    private static String prepare(URI database, int rows, int keys, int bytes) throws Exception {
        int room = bytes - 2;
        String noise = noise(PERIOD + room);
        try (Connection connection = connect(database); Statement statement = connection.createStatement()) {
            statement.execute("CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, "
                    + "type text NOT NULL, payload text)");
            statement.execute("CREATE PUBLICATION " + SLOT + " FOR TABLE outbox WITH (publish = 'insert')");
            statement.execute("SELECT pg_create_logical_replication_slot('" + SLOT + "', 'pgoutput')");
            String insert = "INSERT INTO outbox SELECT gen_random_uuid(), 'bench', key, 'bench', payload "
                    + "FROM unnest(?, ?) row (key, payload)";
            try (PreparedStatement fill = connection.prepareStatement(insert)) {
                for (int begin = 0; begin < 2 * rows; begin += TRANSACTION) {
                    int end = Math.min(begin + TRANSACTION, 2 * rows);
                    fill.setArray(1, texts(connection, begin, end, row -> "k" + row % keys));
                    fill.setArray(2, texts(connection, begin, end, row -> payload(noise, row, room)));
                    fill.executeUpdate();
                }
            }
            try (ResultSet version = statement.executeQuery("SHOW server_version")) {
                version.next();
                return version.getString(1);
            }
        }
    }

    private static Array texts(Connection connection, int begin, int end, IntFunction<String> text) throws SQLException {
        return connection.createArrayOf("text", IntStream.range(begin, end).mapToObj(text).toArray(String[]::new));
    }

    /** At least so many characters: Base64 of SHA-256 of 0, 1 and so on. The other programs make the same. */
    private static String noise(int size) throws NoSuchAlgorithmException {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        ByteArrayOutputStream digests = new ByteArrayOutputStream();
        for (int number = 0; number <= size / 32; number++) {
            digests.writeBytes(digest.digest(bytes(Integer.toString(number))));
        }
        return Base64.getEncoder().encodeToString(digests.toByteArray());
    }

    /** A JSON string with room for so many characters: other ones in each row, those behind the row before. */
    private static String payload(String noise, int row, int room) {
        int begin = (int) ((long) row * room % PERIOD);
        return '"' + noise.substring(begin, begin + room) + '"';
    }

    private static void dropSlot(URI database) throws Exception {
        try (Connection connection = connect(database); Statement statement = connection.createStatement()) {
            for (int turn = 0; ; turn++) {
                try {
                    statement.execute("SELECT pg_drop_replication_slot('" + SLOT + "')");
                    return;
                } catch (SQLException active) {
                    // The server takes a moment to see that its reader is gone.
                    if (turn == 50) {
                        throw active;
                    }
                    Thread.sleep(100);
                }
            }
        }
    }

    private static Connection connect(URI database) throws SQLException {
        String url = "jdbc:postgresql://" + database.getHost() + ":" + database.getPort() + database.getPath();
        String[] user = database.getUserInfo().split(":", 2);
        return DriverManager.getConnection(url, user[0], user[1]);
    }

    private static Properties properties(URI database, String topic) {
        String[] user = database.getUserInfo().split(":", 2);
        Properties properties = new Properties();
        properties.putAll(Map.ofEntries(
                Map.entry("name", "peer"),
                Map.entry("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
                Map.entry("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore"),
                Map.entry("database.hostname", database.getHost()),
                Map.entry("database.port", Integer.toString(database.getPort())),
                Map.entry("database.user", user[0]),
                Map.entry("database.password", user[1]),
                Map.entry("database.dbname", database.getPath().substring(1)),
                Map.entry("topic.prefix", "peer"),
                Map.entry("plugin.name", "pgoutput"),
                Map.entry("slot.name", SLOT),
                Map.entry("publication.name", SLOT),
                Map.entry("publication.autocreate.mode", "disabled"),
                Map.entry("table.include.list", "public.outbox"),
                // From where the slot begins.
                Map.entry("snapshot.mode", "no_data"),
                // How long the last batch waits for company; half a second by default.
                Map.entry("poll.interval.ms", "50"),
                Map.entry("transforms", "outbox"),
                Map.entry("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
                Map.entry("transforms.outbox.route.topic.replacement", topic == null ? "${routedByValue}" : topic),
                Map.entry("converter.schemas.enable", "false")));
        return properties;
    }

    private static Sink nowhere() {
        return new Sink() {
            @Override
            public void send(List<ChangeEvent<String, String>> events) {}

            @Override
            public void close() {}
        };
    }

    private static Sink toKafka(String brokers) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", brokers);
        properties.put("acks", "all");
        properties.put("enable.idempotence", "true");
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
        return new Sink() {
            @Override
            public void send(List<ChangeEvent<String, String>> events) throws Exception {
                List<Future<RecordMetadata>> answers = new ArrayList<>(events.size());
                for (ChangeEvent<String, String> event : events) {
                    ProducerRecord<byte[], byte[]> record =
                            new ProducerRecord<>(event.destination(), bytes(event.key()), bytes(event.value()));
                    for (Header<String> header : event.<String>headers()) {
                        record.headers().add(header.getKey(), bytes(header.getValue()));
                    }
                    answers.add(producer.send(record));
                }
                producer.flush();
                for (Future<RecordMetadata> answer : answers) {
                    answer.get();
                }
            }

            @Override
            public void close() {
                producer.close();
            }
        };
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }
}
