// Reads a topic from its beginning to its present end with Apache Kafka's own consumer. Prints one line of JSON for each record;
// bytes are in base64, null is none. Run by `java -cp 'kafka/*' Reader.java BOOTSTRAP TOPIC`.

import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Reader {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "10000");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions =
                consumer.partitionsFor(arguments[1]).stream().map(info -> new TopicPartition(info.topic(), info.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(line(record));
                }
            }
        }
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        StringJoiner headers = new StringJoiner(",", "[", "]");
        for (Header header : record.headers()) {
            headers.add("[" + text(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)) + "," + text(header.value()) + "]");
        }
        return "{\"partition\":" + record.partition() + ",\"offset\":" + record.offset() + ",\"timestamp\":" + record.timestamp()
            + ",\"key\":" + text(record.key()) + ",\"payload\":" + text(record.value()) + ",\"headers\":" + headers + "}";
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\"";
    }
}
