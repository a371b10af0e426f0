import java.io.*;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.*;

public class Workload {
    static byte[] text(long seed, int size) {
        Random random = new Random(seed);
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++) bytes[i] = (byte) ("etaoin shrdlu\n".charAt(random.nextInt(14)));
        return bytes;
    }

    static long task(long seed) throws Exception {
        byte[] input = text(seed, 20_000 + (int) (seed * 7919 % 200_000));
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
        for (int i = 1; i <= 40; i++) {
            ByteBuffer buffer = ByteBuffer.allocateDirect((int) (1 + seed * i * 31 % 60_000));
            while (buffer.hasRemaining()) buffer.put((byte) (i + buffer.position()));
            buffer.flip();
            buffers.add(buffer);
        }
        for (ByteBuffer buffer : buffers) crc.update(buffer);
        ByteArrayOutputStream file = new ByteArrayOutputStream();
        try (ZipOutputStream zip = new ZipOutputStream(file)) {
            for (int i = 0; i < 10; i++) {
                ZipEntry entry = new ZipEntry("entry" + i);
                entry.setTime(0);
                zip.putNextEntry(entry);
                zip.write(input, i * 1000, 5000);
                zip.closeEntry();
            }
        }
        try (ZipInputStream zip = new ZipInputStream(new ByteArrayInputStream(file.toByteArray()))) {
            while (zip.getNextEntry() != null) crc.update(zip.readAllBytes());
        }
        return crc.getValue();
    }

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int round = 0; round < rounds; round++) {
            ExecutorService pool = Executors.newFixedThreadPool(8);
            List<Future<Long>> results = new ArrayList<>();
            for (int i = 0; i < 32; i++) {
                long seed = round * 32L + i + 1;
                results.add(pool.submit(() -> task(seed)));
            }
            for (Future<Long> result : results) digest.update(Long.toString(result.get()).getBytes());
            pool.shutdown();
            List<Thread> short_lived = new ArrayList<>();
            for (int i = 0; i < 100; i++) { Thread thread = new Thread(() -> new Inflater().end()); thread.start(); short_lived.add(thread); }
            for (Thread thread : short_lived) thread.join();
            System.gc();
        }
        StringBuilder hex = new StringBuilder();
        for (byte b : digest.digest()) hex.append(String.format("%02x", b));
        System.out.println(hex);
    }
}
