// Prints the partition that Apache Kafka's own producer gives to each key, of so many partitions. Keys come as lines of base64 on
// standard input. Run by `java -cp 'kafka/*' Partitions.java COUNT`.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

public class Partitions {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        StringBuilder lines = new StringBuilder();
        try (BufferedReader keys = new BufferedReader(new InputStreamReader(System.in))) {
            for (String key = keys.readLine(); key != null; key = keys.readLine()) {
                lines.append(BuiltInPartitioner.partitionForKey(Base64.getDecoder().decode(key), count)).append('\n');
            }
        }
        System.out.print(lines);
    }
}
