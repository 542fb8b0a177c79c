"""A running dataflow under random faults, compared with what it should have come to."""
