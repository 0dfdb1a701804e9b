"""Log tailing, as Wormhole does it: which caravans read a datastore's log, and who chooses them."""
