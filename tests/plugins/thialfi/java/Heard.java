import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** A message of the service. A part that is absent is null, false, or an empty list. */
record Heard(
        Grant grant, String token, boolean stale, String invalid, List<String> digest, long seen, List<Notice> notices,
        List<Status> statuses, List<Failure> failures, boolean sync, boolean all, Double interval, Double quiet,
        Trouble trouble) {

    record Grant(String nonce, String token, long client, boolean again) {}

    /** A version, whose payload may be null; or, of an unknown version, a number. */
    record Notice(String object, long version, boolean unknown, byte[] payload) {}

    record Status(String object, boolean registered, long number) {}

    record Failure(String object, long number, boolean later, String reason) {}

    /** An `error`; retry is null if it will never work. */
    record Trouble(String code, String message, Double retry) {}

    /** Read a message; IllegalArgumentException if it is none. What this version does not know is left alone. */
    static Heard of(Object json) {
        try {
            return read((Map<?, ?>) json);
        } catch (ClassCastException | NullPointerException | IndexOutOfBoundsException error) {
            throw new IllegalArgumentException("no message: " + error.getMessage());
        }
    }

    private static Heard read(Map<?, ?> message) {
        if (!((String) message.get("v")).matches("1\\.[0-9]+")) {
            throw new IllegalArgumentException("a message of version " + message.get("v"));
        }
        List<?> digest = (List<?>) message.get("digest");
        return new Heard(
                grant((Map<?, ?>) message.get("grant")),
                (String) message.get("token"),
                Boolean.TRUE.equals(message.get("stale")),
                (String) message.get("invalid"),
                digest == null ? null : List.of((String) digest.get(0), (String) digest.get(1)),
                digest == null ? 0 : number(message.get("seen")),
                each(message.get("notify"), Heard::notice),
                each(message.get("status"), it -> new Status(text(it, 0), (Boolean) it.get(1), number(it.get(2)))),
                each(message.get("failed"),
                        it -> new Failure(text(it, 0), number(it.get(1)), (Boolean) it.get(2), text(it, 3))),
                Boolean.TRUE.equals(message.get("sync")),
                Boolean.TRUE.equals(message.get("all")),
                seconds(message.get("interval")),
                seconds(message.get("quiet")),
                trouble((Map<?, ?>) message.get("error")));
    }

    private static Grant grant(Map<?, ?> json) {
        return json == null ? null : new Grant(
                (String) json.get("nonce"), (String) json.get("token"), number(json.get("client")),
                (Boolean) json.get("again"));
    }

    private static Notice notice(List<?> json) {
        String third = json.size() > 2 ? text(json, 2) : null;
        boolean unknown = "unknown".equals(third);
        byte[] payload = third == null || unknown ? null : Base64.getDecoder().decode(third);
        return new Notice(text(json, 0), number(json.get(1)), unknown, payload);
    }

    private static Trouble trouble(Map<?, ?> json) {
        return json == null ? null : new Trouble(
                (String) json.get("code"), (String) json.get("message"), seconds(json.get("retry")));
    }

    private static <T> List<T> each(Object json, Function<List<?>, T> read) {
        List<T> found = new ArrayList<>();
        if (json != null) {
            ((List<?>) json).forEach(entry -> found.add(read.apply((List<?>) entry)));
        }
        return found;
    }

    private static String text(List<?> json, int at) {
        return (String) json.get(at);
    }

    private static long number(Object json) {
        String text = (String) json;
        if (!text.matches("0|[1-9][0-9]{0,18}")) {
            throw new IllegalArgumentException("no number: " + text);
        }
        return Long.parseLong(text); // beyond 2^63-1 it is a NumberFormatException, an IllegalArgumentException too
    }

    private static Double seconds(Object json) {
        return json == null ? null : ((Number) json).doubleValue();
    }
}
