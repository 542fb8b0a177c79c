"""A simulator: random dataflows under random faults, and DESIGN 9's invariants after every step."""
