"""A Delta table of somebody else's, tailed by its change data feed."""
