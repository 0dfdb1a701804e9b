"""What clients, gateways and the stage have in common: messages, tokens, digests, and the columns of streams."""
