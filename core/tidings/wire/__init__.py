"""What publishers and subscribers say to each other, over Arrow Flight, and how they know each other."""
