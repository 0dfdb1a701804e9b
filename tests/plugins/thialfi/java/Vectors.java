import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Whether this client agrees with the vectors: `java Vectors vectors.json`. It ends with 1 if not. */
final class Vectors {
    private static int checked;
    private static int wrong;

    public static void main(String[] arguments) throws IOException {
        Map<?, ?> vectors = map(Json.read(Files.readString(Path.of(arguments[0]))));
        map(vectors.get("from_client")).forEach((name, it) -> check(name, said((String) name, map(it)), it));
        map(vectors.get("from_service")).forEach((name, it) -> check(name, heard((String) name, Heard.of(it)), true));
        for (Object one : list(vectors.get("keys"))) {
            check(one, Long.toUnsignedString(Digest.key(text(one, "object"))), text(one, "key"));
        }
        for (Object one : list(vectors.get("items"))) {
            Digest digest = new Digest(Long.parseLong(text(one, "client")));
            check(one, Long.toUnsignedString(digest.salt), text(one, "salt"));
            check(one, Long.toUnsignedString(digest.item(text(one, "object"))), text(one, "item"));
        }
        for (Object one : list(vectors.get("digests"))) {
            Digest digest = new Digest(Long.parseLong(text(one, "client")));
            digest.add("a");
            list(map(one).get("objects")).forEach(object -> digest.add((String) object));
            digest.remove("a");
            check(one, digest.toJson(), map(one).get("digest"));
        }
        System.out.println(checked + " checked, " + wrong + " wrong");
        System.exit(wrong == 0 && checked > 0 ? 0 : 1);
    }

    /** The message of that name, made as a client makes it. */
    private static Object said(String name, Map<?, ?> message) {
        List<Map<String, Object>> parts = switch (name) {
            case "a first hello" -> List.of(Say.hello("5f1c", "contacts-web-1", "app's own"));
            case "a hello with an old token" -> List.of(Say.hello("5f1d", "contacts-web-1", null));
            case "registrations" -> Say.listed("register", List.of(
                    Say.operation("alice", 1700000000000001L), Say.operation("bob", 1700000000000002L)));
            case "an unregistration" -> Say.listed("unregister", List.of(Say.operation("carol", 1700000000000003L)));
            case "acknowledgements" -> Say.listed("acknowledge", List.of(
                    Say.acknowledgement("alice", Long.MAX_VALUE, false),
                    Say.acknowledgement("bob", 1700000000000000L, true)));
            case "the first part of a sync", "the last part of a sync" -> List.of(part(message));
            case "a sync of nothing" -> Say.sync(1700000000000005L, List.of());
            case "a heartbeat" -> List.of(Say.heartbeat());
            case "the largest number" ->
                Say.listed("register", List.of(Say.operation("alice", Say.LARGEST_NUMBER)));
            case "a poll that says nothing" -> List.of(Map.of());
            case "all kinds of names" -> Say.listed("register", list(message.get("register")).stream()
                    .map(entry -> Say.operation(text(entry, 0), Long.parseLong(text(entry, 1)))).toList());
            default -> throw new IllegalArgumentException("no such message: " + name);
        };
        String token = (String) message.get("token");
        List<String> digest = null;
        if (message.containsKey("digest")) {
            Digest made = new Digest(4711);
            (name.equals("a sync of nothing") ? List.<String>of() : List.of("alice", "bob")).forEach(made::add);
            digest = made.toJson();
        }
        return Json.read(Json.write(Say.message(token, digest, parts.get(0))));
    }

    /** A sync in two parts, as if each object filled a message. */
    private static Map<String, Object> part(Map<?, ?> message) {
        Map<?, ?> sync = map(message.get("sync"));
        String object = (String) list(sync.get("objects")).get(0);
        Map<String, Object> made = Say.sync(1700000000000004L, List.of(object)).get(0);
        @SuppressWarnings("unchecked")
        Map<String, Object> inner = (Map<String, Object>) made.get("sync");
        inner.put("part", sync.get("part"));
        inner.put("parts", 2L);
        return made;
    }

    /** Whether a message of the service was read as what it is. */
    private static boolean heard(String name, Heard it) {
        return switch (name) {
            case "a grant" -> it.grant().equals(new Heard.Grant("5f1c", "token", 4711, false)) && it.interval() == 1200;
            case "a grant that keeps the client" ->
                it.grant().equals(new Heard.Grant("5f1d", "token", Long.MAX_VALUE, true));
            case "a stale token" -> it.stale() && it.token().equals("an.old-token_");
            case "an invalid token" ->
                it.invalid().equals("this is no token of ours") && it.token().equals("an.old-token_");
            case "a digest" ->
                it.digest().equals(List.of("2", "1988993976044995778")) && it.seen() == 1700000000000003L;
            case "a digest of nothing" -> it.digest().equals(List.of("0", "0")) && it.seen() == 0;
            case "a version" -> notice(it, "alice", 7, false, null);
            case "a version with its payload" -> notice(it, "alice", 7, false, "payload");
            case "a version with an empty payload" -> notice(it, "alice", 7, false, "");
            case "an unknown version" -> notice(it, "bob", 1700000000000000L, true, null);
            case "registered, and not" -> it.statuses().equals(List.of(
                    new Heard.Status("alice", true, 1700000000000001L),
                    new Heard.Status("carol", false, 1700000000000003L)));
            case "refused registrations" -> it.failures().equals(List.of(
                    new Heard.Failure("eve", 1700000000000007L, false, "not permitted"),
                    new Heard.Failure("dan", 1700000000000008L, true, "too busy")));
            case "a request to sync" ->
                it.sync() && it.digest().equals(List.of("0", "0")) && it.seen() == 1700000000000003L;
            case "everything may have changed" -> it.all();
            case "another heartbeat" -> it.interval() == 60;
            case "a quiet time" -> it.quiet() == 5.5;
            case "an error that passes" ->
                it.trouble().equals(new Heard.Trouble("rate", "you say too much", 5.0));
            case "an error that stays" ->
                it.trouble().equals(new Heard.Trouble("denied", "you are not let in", null));
            default -> throw new IllegalArgumentException("no such message: " + name);
        };
    }

    private static boolean notice(Heard it, String object, long version, boolean unknown, String payload) {
        Heard.Notice found = it.notices().get(0);
        return found.object().equals(object) && found.version() == version && found.unknown() == unknown
                && Arrays.equals(found.payload(), payload == null ? null : payload.getBytes());
    }

    private static void check(Object about, Object found, Object expected) {
        checked++;
        if (!expected.equals(found)) {
            wrong++;
            System.out.println(about + ": " + found + ", not " + expected);
        }
    }

    private static String text(Object json, int at) {
        return (String) list(json).get(at);
    }

    private static String text(Object json, String key) {
        return (String) map(json).get(key);
    }

    private static Map<?, ?> map(Object json) {
        return (Map<?, ?>) json;
    }

    private static List<?> list(Object json) {
        return (List<?>) json;
    }
}
