"""The web console: what operators see of a cluster in a browser, live, and what they do there."""
