"""Who is who: the secret of a cluster, and the keys that are made of it."""
