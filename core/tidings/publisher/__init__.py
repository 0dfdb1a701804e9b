"""The publisher: owns flows, reads logs by caravans, and sends each flow to the subscriber that holds it."""
