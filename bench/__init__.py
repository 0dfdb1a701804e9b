"""Benchmarks: what tidings does a second, beside a peer measured in the same run or a paper's figure.

Each module here is one benchmark: its docstring's first line says what it measures, and `run(quick)` gives the rows.
`make bench` runs all, `make bench ONLY=log-append QUICK=1` one of them in under a minute.
"""
