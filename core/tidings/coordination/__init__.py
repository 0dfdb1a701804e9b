"""ZooKeeper: the session, what is read of its tree, and who may do what for how long."""
