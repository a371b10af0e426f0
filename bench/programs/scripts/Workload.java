import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import java.util.zip.*;

public class Workload {
    static long task(long seed) {
        try {
            byte[] input = new byte[20_000 + (int) (seed * 7919 % 200_000)];
            Random random = new Random(seed);
            for (int i = 0; i < input.length; i++) input[i] = (byte) "etaoin shrdlu\n".charAt(random.nextInt(14));
            CRC32 crc = new CRC32();
            for (int level = 1; level <= 9; level += 4) {
                Deflater deflater = new Deflater(level);
                deflater.setInput(input);
                deflater.finish();
                byte[] packed = new byte[input.length + 100];
                int length = deflater.deflate(packed);
                deflater.end();
                Inflater inflater = new Inflater();
                inflater.setInput(packed, 0, length);
                byte[] back = new byte[input.length];
                if (inflater.inflate(back) != input.length || !Arrays.equals(back, input)) throw new IOException("inflate");
                inflater.end();
                crc.update(packed, 0, length);
            }
            List<ByteBuffer> buffers = new ArrayList<>();
            for (int i = 1; i <= 40; i++) buffers.add(ByteBuffer.allocateDirect((int) (1 + seed * i * 31 % 60_000)));
            for (ByteBuffer buffer : buffers) {
                while (buffer.hasRemaining()) buffer.put((byte) (seed + buffer.position()));
                crc.update(buffer.flip());
            }
            ByteArrayOutputStream file = new ByteArrayOutputStream();
            try (ZipOutputStream zip = new ZipOutputStream(file)) {
                for (int i = 0; i < 10; i++) {
                    zip.putNextEntry(new ZipEntry("entry" + i));
                    zip.write(input, i * 1000, 5000);
                }
            }
            try (ZipInputStream zip = new ZipInputStream(new ByteArrayInputStream(file.toByteArray()))) {
                while (zip.getNextEntry() != null) crc.update(zip.readAllBytes());
            }
            return crc.getValue();
        } catch (IOException | DataFormatException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        long digest = 0;
        for (int round = 0; round < rounds; round++) {
            long first = round * 32L + 1;
            for (long it : LongStream.range(first, first + 32).parallel().map(Workload::task).toArray()) digest = digest * 31 + it;
            List<Thread> brief = Stream.generate(() -> new Thread(() -> new Inflater().end())).limit(100).toList();
            brief.forEach(Thread::start);
            for (Thread thread : brief) thread.join();
            System.gc();
        }
        System.out.println(Long.toHexString(digest));
    }
}
