import java.security.SecureRandom;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * A client of a Thialfi service, by docs/thialfi-protocol.md; "rule" means a number of its "What a client must do".
 *
 * <p>Everything happens on one thread: calls of the application, events of the channel and the passing of time are put
 * on it one by one. `work` is called a moment after each: it says what there is to say, and sleeps until there may be
 * more.
 */
final class Client implements Channel.Owner {
    static final double NEVER = Double.MAX_VALUE;
    private static final double MOMENT = 0.02;
    private static final double STEADY = 60; // what was good for so long was good
    private static final double PATIENCE = 30; // so long is a digest awaited after a restart
    private static final double DEAF = 60; // a gateway that does not answer a heartbeat for so long is not there
    private static final SecureRandom CHANCE = new SecureRandom();

    private final String address;
    private final String application;
    private final String credentials;
    private final Listener listener;
    private final Registrations registrations;
    private final ScheduledExecutorService loop = Executors.newSingleThreadScheduledExecutor(work -> {
        Thread thread = new Thread(work, "thialfi");
        thread.setDaemon(true);
        return thread;
    });
    private ScheduledFuture<?> alarm;
    private final long born = System.nanoTime();

    private Channel channel;
    private boolean open;
    private boolean ended;
    private double openedAt;
    private final Pause reopening = new Pause(1);

    private String token;
    private boolean stale;
    private long client = -1; // none yet
    private String nonce; // of the last hello, until it is answered
    private double helloAt;
    private double grantedAt = -STEADY;
    private final Pause greeting = new Pause(1);
    private double reissuedAt = NEVER; // the application has registered for all that it wants

    private final List<Object> acknowledgements = new ArrayList<>();
    private final Deque<Map<String, Object>> saying = new ArrayDeque<>();
    private final Bucket bucket = new Bucket();
    private final Pause repeating = new Pause(5);
    private double repeatAt = NEVER;
    private double interval = 1200;
    private double heartbeatAt;
    private double askedAt = NEVER; // by a heartbeat that is not answered
    private double quietUntil;

    /** `credentials` may be null. `state` is what a former client gave to `Listener.keep`, or null. */
    Client(String address, String application, String credentials, Listener listener, String state) {
        this.address = address;
        this.application = application;
        this.credentials = credentials;
        this.listener = listener;
        registrations = new Registrations(listener);
        if (state != null) { // the token, and the client's number: the digest needs it
            token = state.substring(0, state.indexOf(' '));
            client = Long.parseLong(state.substring(state.indexOf(' ') + 1));
            registrations.resume(client);
        }
    }

    // What an application calls

    void start() {
        then(() -> {
            if (token != null) {
                ready();
            }
            channel = Channel.open(address, this);
        });
    }

    void stop() {
        then(this::end);
    }

    void register(Collection<String> objects) {
        then(() -> objects.forEach(object -> registrations.want(object, true)));
    }

    void unregister(Collection<String> objects) {
        then(() -> objects.forEach(object -> registrations.want(object, false)));
    }

    private void ready() {
        listener.ready(this);
        then(() -> reissuedAt = now()); // it comes after the calls that the application has just made
    }

    private void end() {
        ended = true;
        channel.close();
        loop.shutdown();
    }

    private void giveUp(String why) {
        registrations.fail(why);
        end();
    }

    // What the channel tells

    @Override
    public void opened(Channel from) {
        then(() -> {
            if (from == channel) {
                open = true;
                openedAt = helloAt = now();
                askedAt = NEVER;
                stale |= token != null && credentials != null; // they are wanted on each channel
                from.token(greeted() ? token : null);
                sayAllAgain();
            }
        });
    }

    @Override
    public void heard(Channel from, Object json) {
        then(() -> {
            if (from == channel && !ended) {
                take(Heard.of(json));
            }
        });
    }

    @Override
    public void closed(Channel from, int code, String why) {
        then(() -> {
            if (from != channel || ended) {
                return;
            }
            listener.trouble("closed: " + code + " " + why);
            if (code >= 3500 && code <= 3999) {
                giveUp(why);
                return;
            }
            if (open && now() - openedAt > STEADY) { // two that share a token take turns, ever more slowly
                reopening.reset();
            }
            open = false;
            long pause = ms(reopening.next());
            loop.schedule(() -> then(() -> channel = Channel.open(address, this)), pause, TimeUnit.MILLISECONDS);
        });
    }

    private void take(Heard message) {
        askedAt = NEVER;
        if (message.interval() != null) {
            interval = Math.max(1, message.interval());
            heartbeatAt = Math.min(heartbeatAt, nextHeartbeat());
        }
        if (message.quiet() != null) {
            quietUntil = Math.max(quietUntil, now() + message.quiet());
        }
        if (message.trouble() != null) {
            takeTrouble(message.trouble());
        }
        if (message.grant() != null && message.grant().nonce().equals(nonce)) {
            takeGrant(message.grant());
        }
        if (token == null) {
            return; // the rest is about a client that this one is not
        }
        boolean ours = message.token() == null || message.token().equals(token);
        if (message.invalid() != null && ours) {
            listener.trouble("invalid: " + message.invalid());
            forgetToken();
            return;
        }
        if (message.stale() && ours && !stale) {
            stale = true;
            greet();
        }
        message.statuses().forEach(registrations::take);
        message.failures().forEach(registrations::take);
        message.notices().forEach(this::takeNotice);
        if (message.digest() != null && reissuedAt != NEVER) {
            registrations.compare(message.digest(), message.seen(), now());
        }
        if (message.sync() && reissuedAt != NEVER) {
            registrations.askedToSync();
        }
        if (message.all()) {
            listener.notifyAll(this);
        }
        if (registrations.exhausted()) {
            forgetToken();
        }
    }

    private void takeTrouble(Heard.Trouble trouble) {
        listener.trouble("error: " + trouble.code() + ": " + trouble.message());
        if (trouble.retry() != null) {
            quietUntil = Math.max(quietUntil, now() + trouble.retry());
        } else if (List.of("denied", "version").contains(trouble.code())) {
            giveUp(trouble.message());
        }
    }

    private void takeGrant(Heard.Grant grant) {
        boolean first = client < 0;
        boolean fresh = !grant.again() || grant.client() != client;
        nonce = null;
        stale = false;
        token = grant.token();
        client = grant.client();
        if (now() - grantedAt > STEADY) { // else it was refused soon: the next hello may wait longer
            greeting.reset();
        }
        grantedAt = now();
        listener.keep(token + " " + client);
        channel.token(token);
        if (fresh) {
            acknowledgements.clear();
            saying.clear();
            registrations.adopt(client);
        }
        sayAllAgain();
        if (first) {
            ready();
        }
    }

    /** Rule 4. */
    private void takeNotice(Heard.Notice notice) {
        Registrations.Intent intent = registrations.wanted(notice.object());
        if (intent == null) {
            return; // neither told nor acknowledged
        }
        try {
            if (notice.unknown() && notice.version() > intent.unknown) {
                listener.notifyUnknown(notice.object());
                intent.unknown = notice.version();
            } else if (!notice.unknown() && notice.version() > intent.version) {
                listener.notify(notice.object(), notice.version(), notice.payload());
                intent.version = notice.version();
            }
        } catch (RuntimeException error) {
            listener.trouble("not acknowledged: " + error);
            return;
        }
        acknowledgements.add(Say.acknowledgement(notice.object(), notice.version(), notice.unknown()));
    }

    private void forgetToken() {
        token = null;
        stale = false;
        listener.keep(null);
        greet();
    }

    /** Say hello in a while, and nothing else until it is answered. */
    private void greet() {
        nonce = null;
        saying.clear();
        helloAt = now() + greeting.next();
        channel.token(null);
    }

    private boolean greeted() {
        return token != null && !stale;
    }

    // What the client says

    /** On a new channel, and with a new token, what was said before may be lost. */
    private void sayAllAgain() {
        saying.removeIf(parts -> !parts.containsKey("acknowledge"));
        registrations.sayAgain();
        repeatAt = NEVER;
        repeating.reset();
        heartbeatAt = now(); // so that the gateway knows who is here, and says its digest
    }

    /** Say what there is to say, as far as it may be said now; and come back when there may be more. */
    private void work() {
        alarm = null;
        if (ended || !open) {
            return;
        }
        if (now() >= quietUntil) {
            if (!greeted()) {
                sayHello();
            } else if (saying.isEmpty()) {
                gather();
            }
            while (!saying.isEmpty() && bucket.take(now())) {
                say(saying.poll());
            }
        }
        if (now() - askedAt > DEAF) {
            channel.close();
        } else {
            wakeAt(Math.max(quietUntil, saying.isEmpty() ? due() : now() + 0.2));
        }
    }

    private void sayHello() {
        if (now() >= helloAt) {
            byte[] fresh = new byte[16];
            CHANCE.nextBytes(fresh);
            nonce = HexFormat.of().formatHex(fresh);
            saying.clear();
            saying.add(Say.hello(nonce, application, credentials));
            helloAt = now() + greeting.next();
        }
    }

    /** Put what is due into messages. */
    private void gather() {
        boolean repeats = now() >= repeatAt;
        if (repeats) {
            repeatAt = NEVER;
            registrations.sayAgain();
            if (now() - reissuedAt > PATIENCE) {
                registrations.stopWaiting();
            }
        }
        saying.addAll(registrations.unsaid());
        saying.addAll(Say.listed("acknowledge", acknowledgements));
        acknowledgements.clear();
        boolean doubts = now() >= registrations.doubtAt() && askedAt == NEVER;
        if (repeats || doubts || now() >= heartbeatAt) {
            if (saying.isEmpty()) {
                saying.add(Say.heartbeat());
            } else {
                saying.peekLast().putAll(Say.heartbeat());
            }
        }
    }

    private void say(Map<String, Object> parts) {
        boolean digested = greeted() && (!registrations.restarting() || reissuedAt != NEVER);
        channel.send(Say.message(token, digested ? registrations.digest() : null, parts));
        if (parts.containsKey("heartbeat")) {
            askedAt = Math.min(askedAt, now());
        }
        heartbeatAt = nextHeartbeat();
    }

    /** When there may be something to say, if nothing happens before. */
    private double due() {
        if (!greeted()) {
            return helloAt;
        }
        if (!registrations.waiting()) {
            repeatAt = NEVER;
            repeating.reset();
        } else if (repeatAt == NEVER) {
            repeatAt = now() + repeating.next();
        }
        double asked = askedAt == NEVER ? registrations.doubtAt() : askedAt + DEAF;
        return Math.min(Math.min(repeatAt, heartbeatAt), asked);
    }

    private double nextHeartbeat() {
        return now() + interval * ThreadLocalRandom.current().nextDouble(0.8, 1);
    }

    // Time

    /** Do it on the client's thread, and see a moment later what there is to say: much of a moment is one message. */
    private void then(Runnable event) {
        if (loop.isShutdown()) {
            return;
        }
        loop.execute(() -> {
            try {
                event.run();
            } catch (RuntimeException error) {
                listener.trouble(error.toString());
            }
            wakeAt(now() + MOMENT);
        });
    }

    /** Work then, or when it was to be done anyway, if that is earlier. */
    private void wakeAt(double time) {
        if (loop.isShutdown()) {
            return;
        }
        long pause = ms(time - now());
        if (alarm != null && !alarm.isDone()) {
            pause = Math.min(pause, Math.max(0, alarm.getDelay(TimeUnit.MILLISECONDS)));
            alarm.cancel(false);
        }
        alarm = loop.schedule(this::work, pause, TimeUnit.MILLISECONDS);
    }

    private double now() {
        return (System.nanoTime() - born) / 1e9;
    }

    private static long ms(double seconds) {
        return (long) Math.ceil(Math.max(0, Math.min(seconds, 86_400)) * 1000);
    }

    /** Pauses that double up to five minutes, with jitter. */
    private static final class Pause {
        private final double first;
        private double next;

        Pause(double first) {
            this.first = first;
            next = first;
        }

        double next() {
            double pause = next * ThreadLocalRandom.current().nextDouble(0.5, 1);
            next = Math.min(2 * next, 300);
            return pause;
        }

        void reset() {
            next = first;
        }
    }

    /** Five messages a second, 20 at once. */
    private static final class Bucket {
        private double left = 20;
        private double at;

        boolean take(double now) {
            left = Math.min(20, left + (now - at) * 5);
            at = now;
            boolean may = left >= 1;
            left -= may ? 1 : 0;
            return may;
        }
    }
}
