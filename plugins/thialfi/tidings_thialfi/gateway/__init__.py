"""The gateway: between clients' channels and the streams of a service."""
