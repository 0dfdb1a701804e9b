"""The client library: registers objects, and is told their latest versions."""
