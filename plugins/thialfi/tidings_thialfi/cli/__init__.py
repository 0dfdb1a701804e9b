"""The commands that Thialfi adds to `tidings`."""
