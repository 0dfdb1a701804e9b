"""The stage: matches updates with registrations, in a Spark query."""
