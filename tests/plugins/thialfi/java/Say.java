import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** What a client says: the parts of messages, and lists cut so that each message keeps the protocol's limits. */
final class Say {
    static final long LARGEST_NUMBER = (1L << 62) - 1;
    static final int MESSAGE = 65_536;
    private static final int ENTRIES = 4_096;
    private static final int AROUND = 2_048; // a token of 1,024 bytes, a digest, a sync's numbers, and names of parts

    /** Parts in the envelope of every message; token and digest are left out if they are null. */
    static Map<String, Object> message(String token, List<String> digest, Map<String, Object> parts) {
        Map<String, Object> made = new LinkedHashMap<>();
        made.put("v", "1.0");
        if (token != null) {
            made.put("token", token);
        }
        if (digest != null) {
            made.put("digest", digest);
        }
        made.putAll(parts);
        return made;
    }

    static Map<String, Object> hello(String nonce, String application, String credentials) {
        Map<String, Object> hello = new LinkedHashMap<>();
        hello.put("nonce", nonce);
        hello.put("application", application);
        if (credentials != null) {
            hello.put("credentials", credentials);
        }
        return parts("hello", hello);
    }

    static Map<String, Object> heartbeat() {
        return parts("heartbeat", true);
    }

    static List<Object> operation(String object, long number) {
        return List.of(object, Long.toString(number));
    }

    static List<Object> acknowledgement(String object, long number, boolean unknown) {
        String text = Long.toString(number);
        return unknown ? List.of(object, text, "unknown") : List.of(object, text);
    }

    /** One message's parts for each piece of a list: `register`, `unregister` or `acknowledge`. */
    static List<Map<String, Object>> listed(String part, List<?> entries) {
        return map(pieces(entries), piece -> parts(part, piece));
    }

    /** All parts of a sync. */
    static List<Map<String, Object>> sync(long number, List<String> objects) {
        List<List<String>> pieces = pieces(objects);
        if (pieces.isEmpty()) {
            pieces.add(List.of());
        }
        List<Map<String, Object>> made = new ArrayList<>();
        for (List<String> piece : pieces) {
            Map<String, Object> sync = new LinkedHashMap<>();
            sync.put("number", Long.toString(number));
            sync.put("part", (long) made.size());
            sync.put("parts", (long) pieces.size());
            sync.put("objects", piece);
            made.add(parts("sync", sync));
        }
        return made;
    }

    private static Map<String, Object> parts(String name, Object value) {
        Map<String, Object> made = new LinkedHashMap<>();
        made.put(name, value);
        return made;
    }

    private static <T> List<List<T>> pieces(List<T> entries) {
        List<List<T>> made = new ArrayList<>();
        int room = 0;
        for (T entry : entries) {
            int size = Json.utf8(Json.write(entry)).length + 1;
            if (size > room || made.get(made.size() - 1).size() == ENTRIES) {
                made.add(new ArrayList<>());
                room = MESSAGE - AROUND;
            }
            made.get(made.size() - 1).add(entry);
            room -= size;
        }
        return made;
    }

    private static <A, B> List<B> map(List<A> all, Function<A, B> work) {
        List<B> made = new ArrayList<>();
        all.forEach(one -> made.add(work.apply(one)));
        return made;
    }
}
