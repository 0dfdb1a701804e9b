/** What an application hears. All of it comes on one thread; a notification is acknowledged unless this throws. */
interface Listener {
    /** Register for all that you want: before this returns, after each start. */
    default void ready(Client client) {}

    default void registered(String object) {}

    default void unregistered(String object) {}

    /** The object is not intended any more; `later` says whether it may work later. */
    default void failed(String object, boolean later, String reason) {}

    /** The latest version; the payload is null if there is none. */
    default void notify(String object, long version, byte[] payload) {}

    /** Fetch this object: nobody knows its version. */
    default void notifyUnknown(String object) {}

    /** Fetch every object. */
    default void notifyAll(Client client) {}

    /** Keep this, and start the next client with it. Null: forget it. */
    default void keep(String state) {}

    /** The client and the service agree on what is registered. */
    default void agreed(String count) {}

    /** What goes wrong, for a log. */
    default void trouble(String what) {}
}
