"""What publishers and subscribers say to each other, over Arrow Flight, and how they prove who they are."""

import os

# gRPC would write about its failures to stderr, beside our sentences.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
