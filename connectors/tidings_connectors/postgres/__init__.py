"""PostgreSQL, tailed by logical replication."""
