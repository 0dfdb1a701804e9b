import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** What the application intends to be registered for, and how far the service is known to have it: rules 2, 3 and 7. */
final class Registrations {
    private static final double DOUBT = 30;
    private static final double NEVER = Client.NEVER;

    /** An object that the application wants, or an unregistration that is not answered yet. */
    static final class Intent {
        final String object;
        boolean wanted;
        private boolean answered; // the application knows what became of its last call
        private long number; // of the operation or the sync that has last said what is wanted
        private boolean said;
        long version = -1; // the last that the application was told, and the last number of an unknown one
        long unknown = -1;

        Intent(String object) {
            this.object = object;
        }
    }

    private final Listener listener;
    private final Map<String, Intent> intents = new LinkedHashMap<>();
    private final TreeMap<Long, Intent> operations = new TreeMap<>(); // outstanding ones, by number
    private Digest digest = new Digest(0);
    private long number = System.currentTimeMillis() * 1000;
    private long answered; // the largest number that the service has answered
    private long sync = -1; // the number of the outstanding one
    private boolean syncDue;
    private boolean restarting; // with a kept token, until the digests are compared
    private double doubtAt = NEVER; // the service may have forgotten; if it still has then, sync

    Registrations(Listener listener) {
        this.listener = listener;
    }

    // What the application does

    void want(String object, boolean wanted) {
        int size = Json.utf8(object).length;
        if (size < 1 || size > 1024) {
            throw new IllegalArgumentException("an object has 1 to 1,024 bytes");
        }
        Intent intent = intents.computeIfAbsent(object, Intent::new);
        if (intent.wanted && wanted) {
            if (intent.answered) {
                listener.registered(object);
            }
            return;
        }
        if (wanted) {
            digest.add(object);
        } else if (intent.wanted) {
            digest.remove(object);
        }
        intent.wanted = wanted;
        intent.version = intent.unknown = -1; // one that comes back wants to hear of what it has heard of before
        operate(intent);
    }

    /** The intent of an object that the application wants, or null. */
    Intent wanted(String object) {
        Intent intent = intents.get(object);
        return intent != null && intent.wanted ? intent : null;
    }

    private List<String> wanted() {
        return intents.values().stream().filter(intent -> intent.wanted).map(intent -> intent.object).toList();
    }

    /** The client has given up. */
    void fail(String why) {
        wanted().forEach(object -> listener.failed(object, false, why));
        intents.clear();
    }

    // What the service says

    /** This is the client of an earlier run: the service may have all that the application will register for. */
    void resume(long client) {
        digest = new Digest(client);
        restarting = true;
    }

    /** This is a new client, of which the service knows nothing: rule 6. */
    void adopt(long client) {
        restarting = syncDue = false;
        answered = 0;
        sync = -1;
        doubtAt = NEVER;
        digest = new Digest(client);
        for (Intent intent : intents.values()) {
            intent.unknown = -1;
            if (intent.wanted) {
                digest.add(intent.object);
            }
            operate(intent);
        }
    }

    void take(Heard.Status status) {
        Intent intent = intents.get(status.object());
        if (intent == null || restarting || status.number() < intent.number) {
            return;
        }
        if (intent.wanted == status.registered()) {
            answered = Math.max(answered, status.number());
            operations.remove(intent.number, intent);
            answer(intent);
        } else if (status.number() > intent.number) { // of an earlier run
            number = Math.max(number, status.number());
            operate(intent);
        }
    }

    void take(Heard.Failure failure) {
        Intent intent = intents.get(failure.object());
        if (intent == null || failure.number() < intent.number) {
            return;
        }
        operations.remove(intent.number, intent);
        intents.remove(intent.object);
        if (intent.wanted) {
            digest.remove(intent.object);
        }
        listener.failed(intent.object, failure.later(), failure.reason());
    }

    /** Compare the service's digest with ours. */
    void compare(List<String> theirs, long seen, double now) {
        boolean agree = theirs.equals(digest.toJson());
        boolean current = restarting || seen >= largest();
        if (restarting || seen > number) {
            number = Math.max(number, seen);
            answered = Math.max(answered, seen);
            new ArrayList<>(operations.values()).forEach(this::operate);
        }
        if (agree && current) {
            settle(seen);
        } else if (!agree && !outstanding() && (current || now >= doubtAt)) {
            syncDue = true;
        } else if (!agree && !outstanding()) {
            doubtAt = Math.min(doubtAt, now + DOUBT);
            return;
        }
        restarting = false;
        doubtAt = NEVER;
    }

    /** The service wants a sync: not while something is under way that may make it needless. */
    void askedToSync() {
        syncDue |= !outstanding();
    }

    /** The service has had its time to say a digest after a restart. */
    void stopWaiting() {
        syncDue |= restarting;
    }

    private void settle(long seen) {
        answered = Math.max(answered, seen);
        sync = -1;
        syncDue = false;
        operations.clear();
        new ArrayList<>(intents.values()).forEach(this::answer);
        listener.agreed(digest.toJson().get(0));
    }

    private void answer(Intent intent) {
        if (intent.answered) {
            return;
        }
        intent.answered = true;
        if (intent.wanted) {
            listener.registered(intent.object);
        } else {
            intents.remove(intent.object);
            listener.unregistered(intent.object);
        }
    }

    /** The largest number used, those aside that were refused. */
    private long largest() {
        long outstanding = operations.isEmpty() ? 0 : operations.lastKey();
        return Math.max(answered, Math.max(outstanding, sync));
    }

    // What is to be said

    List<String> digest() {
        return digest.toJson();
    }

    boolean restarting() {
        return restarting;
    }

    /** Whether something is under way that explains a difference of digests. */
    private boolean outstanding() {
        return syncDue || sync >= 0 || !operations.isEmpty();
    }

    /** Whether the service is to answer something: it is said again until it has. */
    boolean waiting() {
        return restarting || outstanding();
    }

    /** When to ask for a digest, because of a doubt. */
    double doubtAt() {
        return doubtAt;
    }

    /** Whether numbers come near their end. A new client begins anew. */
    boolean exhausted() {
        boolean ends = number > Say.LARGEST_NUMBER - 1_000_000;
        number = ends ? System.currentTimeMillis() * 1000 : number;
        return ends;
    }

    /** What was said may be lost. Parts of two syncs never mix, so a sync is said again under a new number. */
    void sayAgain() {
        syncDue |= sync >= 0;
        operations.values().forEach(intent -> intent.said = false);
    }

    /** The parts of messages that say what was not said yet. */
    List<Map<String, Object>> unsaid() {
        List<Map<String, Object>> parts = new ArrayList<>();
        if (syncDue) { // in the place of all outstanding operations
            syncDue = restarting = false;
            sync = ++number;
            operations.clear();
            intents.values().forEach(intent -> intent.number = sync);
            parts.addAll(Say.sync(sync, wanted()));
        }
        List<Object> registers = new ArrayList<>();
        List<Object> unregisters = new ArrayList<>();
        for (Intent intent : operations.values()) {
            if (!intent.said) {
                intent.said = true;
                (intent.wanted ? registers : unregisters).add(Say.operation(intent.object, intent.number));
            }
        }
        parts.addAll(Say.listed("register", registers));
        parts.addAll(Say.listed("unregister", unregisters));
        return parts;
    }

    /** Say under a new number what is wanted; after a restart, digests come first. */
    private void operate(Intent intent) {
        operations.remove(intent.number, intent);
        intent.answered = intent.said = false;
        if (!restarting) {
            intent.number = ++number;
            operations.put(intent.number, intent);
        }
    }
}
