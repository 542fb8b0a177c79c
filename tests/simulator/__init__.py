"""A simulator: random dataflows under random faults, and the invariants of `docs/guarantees.md` after every step."""
