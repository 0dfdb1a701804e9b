import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/**
 * A client that is told what to do by lines on its input, and says what it hears in lines on its output: JSON each.
 *
 * <p>`java Console ADDRESS APPLICATION [STATE]`; then `["register", [object, …]]` or `["unregister", [object, …]]`.
 * What is registered in the first line is registered when the client is ready.
 */
final class Console implements Listener {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final List<String> first;

    private Console(List<String> first) {
        this.first = first;
    }

    public static void main(String[] arguments) throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Console console = new Console(objects(in.readLine()));
        String state = arguments.length > 2 ? arguments[2] : null;
        Client client = new Client(arguments[0], arguments[1], null, console, state);
        client.start();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.startsWith("[\"register\"")) {
                client.register(objects(line));
            } else {
                client.unregister(objects(line));
            }
        }
        client.stop();
    }

    @SuppressWarnings("unchecked")
    private static List<String> objects(String line) {
        return (List<String>) ((List<?>) Json.read(line)).get(1);
    }

    private static void say(Object... event) {
        OUT.println(Json.write(new ArrayList<>(Arrays.asList(event))));
    }

    @Override
    public void ready(Client client) {
        say("ready");
        client.register(first);
    }

    @Override
    public void registered(String object) {
        say("registered", object);
    }

    @Override
    public void unregistered(String object) {
        say("unregistered", object);
    }

    @Override
    public void failed(String object, boolean later, String reason) {
        say("failed", object, later, reason);
    }

    @Override
    public void notify(String object, long version, byte[] payload) {
        String text = payload == null ? null : Base64.getEncoder().encodeToString(payload);
        say("notify", object, Long.toString(version), text);
    }

    @Override
    public void notifyUnknown(String object) {
        say("unknown", object);
    }

    @Override
    public void notifyAll(Client client) {
        say("all");
    }

    @Override
    public void keep(String state) {
        say("keep", state);
    }

    @Override
    public void agreed(String count) {
        say("agreed", count);
    }

    @Override
    public void trouble(String what) {
        say("trouble", what);
    }
}
