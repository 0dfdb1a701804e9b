import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much JSON as the protocol needs: maps, lists, text, booleans, whole numbers as Long, others as Double, null. */
final class Json {
    private static final int DEEPEST = 16;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** What a text says; IllegalArgumentException if it is no JSON, has a key twice, or half of a surrogate pair. */
    static Object read(String text) {
        Json reader = new Json(text);
        Object value = reader.value(0);
        reader.blanks();
        reader.require(reader.at == text.length());
        return value;
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    /** The UTF-8 of a text; IllegalArgumentException if it holds half of a surrogate pair. */
    static byte[] utf8(String text) {
        try {
            var bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            byte[] found = new byte[bytes.remaining()];
            bytes.get(found);
            return found;
        } catch (CharacterCodingException error) {
            throw new IllegalArgumentException("text with half of a surrogate pair");
        }
    }

    private Object value(int depth) {
        require(depth < DEEPEST);
        blanks();
        require(at < text.length());
        switch (text.charAt(at)) {
            case '{': return object(depth);
            case '[': return array(depth);
            case '"': return string();
            case 't': return word("true", true);
            case 'f': return word("false", false);
            case 'n': return word("null", null);
            default: return number();
        }
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> found = new LinkedHashMap<>();
        at++;
        if (!take('}')) {
            do {
                blanks();
                String key = string();
                require(take(':') && !found.containsKey(key));
                found.put(key, value(depth + 1));
            } while (take(','));
            require(take('}'));
        }
        return found;
    }

    private List<Object> array(int depth) {
        List<Object> found = new ArrayList<>();
        at++;
        if (!take(']')) {
            do {
                found.add(value(depth + 1));
            } while (take(','));
            require(take(']'));
        }
        return found;
    }

    private String string() {
        require(at < text.length() && text.charAt(at++) == '"');
        StringBuilder found = new StringBuilder();
        while (true) {
            require(at < text.length());
            char next = text.charAt(at++);
            if (next == '"') {
                break;
            }
            require(next >= ' ');
            found.append(next == '\\' ? escaped() : next);
        }
        utf8(found.toString());
        return found.toString();
    }

    private char escaped() {
        require(at < text.length());
        char kind = text.charAt(at++);
        switch (kind) {
            case '"': case '\\': case '/': return kind;
            case 'b': return '\b';
            case 'f': return '\f';
            case 'n': return '\n';
            case 'r': return '\r';
            case 't': return '\t';
            case 'u':
                require(at + 4 <= text.length() && text.substring(at, at + 4).matches("[0-9a-fA-F]{4}"));
                at += 4;
                return (char) Integer.parseInt(text.substring(at - 4, at), 16);
            default: throw new IllegalArgumentException("no JSON");
        }
    }

    private Object number() {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String found = text.substring(start, at);
        require(found.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?"));
        if (found.matches("-?[0-9]{1,18}")) {
            return Long.parseLong(found);
        }
        return Double.parseDouble(found);
    }

    private Object word(String word, Object value) {
        require(text.startsWith(word, at));
        at += word.length();
        return value;
    }

    private boolean take(char wanted) {
        blanks();
        boolean there = at < text.length() && text.charAt(at) == wanted;
        at += there ? 1 : 0;
        return there;
    }

    private void blanks() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private void require(boolean holds) {
        if (!holds) {
            throw new IllegalArgumentException("no JSON, at " + at);
        }
    }

    private static void write(Object value, StringBuilder out) {
        String mark = "";
        if (value instanceof Map<?, ?> map) {
            out.append('{');
            for (var entry : map.entrySet()) {
                write(entry.getKey(), out.append(mark));
                write(entry.getValue(), out.append(':'));
                mark = ",";
            }
            out.append('}');
        } else if (value instanceof List<?> list) {
            out.append('[');
            for (Object element : list) {
                write(element, out.append(mark));
                mark = ",";
            }
            out.append(']');
        } else if (value instanceof String string) {
            out.append('"');
            for (char one : string.toCharArray()) {
                if (one == '"' || one == '\\') {
                    out.append('\\').append(one);
                } else if (one < ' ') {
                    out.append(String.format("\\u%04x", (int) one));
                } else {
                    out.append(one);
                }
            }
            out.append('"');
        } else {
            out.append(value);
        }
    }
}
