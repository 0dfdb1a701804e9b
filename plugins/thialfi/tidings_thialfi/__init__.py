"""Thialfi: clients register for objects, and always learn the latest version in the end."""
