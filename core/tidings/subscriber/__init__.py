"""The subscriber: receives the flows of an application, and calls its handler."""
