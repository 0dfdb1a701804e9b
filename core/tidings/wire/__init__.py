"""What publishers and subscribers say to each other, over Arrow Flight, and how they prove who they are."""

import os

# gRPC would write about its failures to stderr, beside our sentences; and what it does in a child that was forked, to
# be of use there, can end one that only wants to start a program.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
