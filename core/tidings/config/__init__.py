"""`tidings.yml`: what it may say, how it is read, and how mistakes in it are told."""
