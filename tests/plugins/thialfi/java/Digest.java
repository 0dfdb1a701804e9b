import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;

/** The digest of a set of objects, as one client has it. */
final class Digest {
    private static final long SEED = 42;
    private static final long P1 = 0x9E3779B185EBCA87L;
    private static final long P2 = 0xC2B2AE3D27D4EB4FL;
    private static final long P3 = 0x165667B19E3779F9L;
    private static final long P4 = 0x85EBCA77C2B2AE63L;
    private static final long P5 = 0x27D4EB2F165667C5L;

    final long salt;
    private long count;
    private long sum;

    Digest(long client) {
        salt = xxh64(le64(client), SEED);
    }

    void add(String object) {
        count++;
        sum += item(object);
    }

    void remove(String object) {
        count--;
        sum -= item(object);
    }

    /** As it stands in messages. */
    List<String> toJson() {
        return List.of(Long.toString(count), Long.toUnsignedString(sum));
    }

    long item(String object) {
        return xxh64(le64(key(object)), salt);
    }

    static long key(String object) {
        return xxh64(Json.utf8(object), SEED);
    }

    private static byte[] le64(long number) {
        return ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(number).array();
    }

    /** The 64 bits of XXH64; Java's sums and products are modulo 2^64 as they are. */
    static long xxh64(byte[] data, long seed) {
        ByteBuffer in = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        long hash;
        if (data.length >= 32) {
            long a = seed + P1 + P2;
            long b = seed + P2;
            long c = seed;
            long d = seed - P1;
            while (in.remaining() >= 32) {
                a = round(a, in.getLong());
                b = round(b, in.getLong());
                c = round(c, in.getLong());
                d = round(d, in.getLong());
            }
            hash = Long.rotateLeft(a, 1) + Long.rotateLeft(b, 7) + Long.rotateLeft(c, 12) + Long.rotateLeft(d, 18);
            for (long lane : new long[] {a, b, c, d}) {
                hash = (hash ^ round(0, lane)) * P1 + P4;
            }
        } else {
            hash = seed + P5;
        }
        hash += data.length;
        while (in.remaining() >= 8) {
            hash = Long.rotateLeft(hash ^ round(0, in.getLong()), 27) * P1 + P4;
        }
        if (in.remaining() >= 4) {
            hash = Long.rotateLeft(hash ^ (in.getInt() & 0xFFFFFFFFL) * P1, 23) * P2 + P3;
        }
        while (in.hasRemaining()) {
            hash = Long.rotateLeft(hash ^ (in.get() & 0xFF) * P5, 11) * P1;
        }
        hash = (hash ^ hash >>> 33) * P2;
        hash = (hash ^ hash >>> 29) * P3;
        return hash ^ hash >>> 32;
    }

    private static long round(long lane, long input) {
        return Long.rotateLeft(lane + input * P2, 31) * P1;
    }
}
