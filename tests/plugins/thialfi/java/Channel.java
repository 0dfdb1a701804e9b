import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.WebSocket;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;

/** A way to a gateway: a WebSocket, or long polls. What it has to say it says to its owner, on any thread. */
interface Channel {
    /** Whom a channel belongs to. `closed` comes once; its code is 0 if there is none. */
    interface Owner {
        void opened(Channel channel);

        void heard(Channel channel, Object json);

        void closed(Channel channel, int code, String why);
    }

    void send(Map<String, Object> message);

    /** The client has this token from now on; or, with null, none that is good. */
    void token(String token);

    void close();

    /** Open one to `ws://`, `wss://`, `http://` or `https://` and host; the first two are WebSockets. */
    static Channel open(String address, Owner owner) {
        HttpClient http = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(20)).build();
        return address.startsWith("ws") ? new Socket(http, address, owner) : new Polls(http, address, owner);
    }

    /** One WebSocket. */
    final class Socket implements Channel, WebSocket.Listener {
        private final Owner owner;
        private final CompletableFuture<WebSocket> opening;
        private final StringBuilder text = new StringBuilder();
        private CompletableFuture<WebSocket> sent;
        private boolean closed;

        Socket(HttpClient http, String address, Owner owner) {
            this.owner = owner;
            opening = http.newWebSocketBuilder()
                    .subprotocols("tidings.thialfi.v1").connectTimeout(Duration.ofSeconds(20))
                    .buildAsync(URI.create(address + "/v1/client"), this);
            sent = opening;
            opening.whenComplete((socket, error) -> {
                if (error == null) {
                    owner.opened(this);
                } else {
                    end(0, error.toString());
                }
            });
        }

        @Override
        public synchronized void send(Map<String, Object> message) { // one after the other: WebSocket wants it so
            sent = sent.thenCompose(socket -> socket.sendText(Json.write(message), true));
            sent.exceptionally(error -> {
                end(0, error.toString());
                return null;
            });
        }

        @Override
        public CompletionStage<?> onText(WebSocket socket, CharSequence data, boolean last) {
            text.append(data);
            if (text.length() > Say.MESSAGE) {
                close();
                return null;
            }
            if (last) {
                String whole = text.toString();
                text.setLength(0);
                owner.heard(this, Json.read(whole));
            }
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onClose(WebSocket socket, int code, String reason) {
            end(code, reason);
            return null;
        }

        @Override
        public void onError(WebSocket socket, Throwable error) {
            end(0, error.toString());
        }

        @Override
        public void token(String token) {}

        @Override
        public void close() {
            opening.thenAccept(WebSocket::abort);
            end(0, "closed here");
        }

        private void end(int code, String why) {
            synchronized (this) {
                if (closed) {
                    return;
                }
                closed = true;
            }
            owner.closed(this, code, why);
        }
    }

    /** Long polls: one is under way all the time, and what the client says goes beside it. */
    final class Polls implements Channel {
        private static final Duration PATIENCE = Duration.ofSeconds(75); // a poll is held for 55 s at most

        private final HttpClient http;
        private final URI address;
        private final Owner owner;
        private String token;
        private volatile String key;
        private boolean closed;

        Polls(HttpClient http, String address, Owner owner) {
            this.http = http;
            this.address = URI.create(address + "/v1/poll");
            this.owner = owner;
            owner.opened(this);
        }

        @Override
        public synchronized void token(String fresh) {
            boolean polls = fresh == null || fresh.equals(token);
            token = fresh;
            if (!polls) {
                hold(fresh);
            }
        }

        @Override
        public synchronized void send(Map<String, Object> message) {
            poll(message, 0L);
        }

        /** Poll for as long as the client has this token. One that is answered at once with nothing waits a second. */
        private synchronized void hold(String mine) {
            if (!mine.equals(token) || closed) {
                return;
            }
            long start = System.nanoTime();
            poll(Say.message(mine, null, Map.of()), null).thenAccept(count -> {
                boolean elsewhere = count == 0 && System.nanoTime() - start < 1_000_000_000L;
                CompletableFuture.delayedExecutor(elsewhere ? 1 : 0, TimeUnit.SECONDS).execute(() -> hold(mine));
            });
        }

        /** Poll; how many messages came. */
        private CompletableFuture<Integer> poll(Map<String, Object> message, Long wait) {
            Map<String, Object> body = new LinkedHashMap<>();
            body.put("send", List.of(message));
            if (wait != null) {
                body.put("wait", wait);
            }
            if (key != null) {
                body.put("channel", key);
            }
            HttpRequest request = HttpRequest.newBuilder(address).timeout(PATIENCE)
                    .header("Content-Type", "application/json")
                    .POST(BodyPublishers.ofString(Json.write(body))).build();
            var done = http.sendAsync(request, BodyHandlers.ofString()).thenApply(this::answered);
            done.exceptionally(error -> {
                end(error.toString());
                return 0;
            });
            return done;
        }

        private int answered(HttpResponse<String> answer) {
            if (answer.statusCode() != 200 && answer.statusCode() != 400) {
                throw new IllegalStateException("answered with " + answer.statusCode());
            }
            Map<?, ?> whole = (Map<?, ?>) Json.read(answer.body());
            if (whole.get("channel") instanceof String named) {
                key = named;
            }
            List<?> messages = (List<?>) whole.get("receive");
            messages.forEach(message -> owner.heard(this, message));
            return messages.size();
        }

        @Override
        public void close() {
            end("closed here");
        }

        private void end(String why) {
            synchronized (this) {
                if (closed) {
                    return;
                }
                closed = true;
            }
            owner.closed(this, 0, why);
        }
    }
}
