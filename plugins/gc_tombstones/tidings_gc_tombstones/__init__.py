"""Collection, as Sprinkler does it: updates that are obsolete give way to tombstones, and nobody misses what matters.

Everything here is within one shard of a stream, where positions say what is earlier. There are three kinds of event:
updates, gc events and tombstones. A gc event carries a predicate; it *matches* an event that is earlier than itself and
that its predicate holds for. What is matched may be collected: a tombstone stands in its place.

- Policies (`policies`) make updates gc events: with `latest_per_key` each update matches the earlier ones of its key.
- An explicit gc event has its predicate in the attribute `collects` (`predicates`).
- A gc event may collect another one only if it matches all that the other one does (`covering`). So what is collected
  stays so: whoever reads a tombstone reads, further on, an event that matches what the tombstone stands for.
"""
