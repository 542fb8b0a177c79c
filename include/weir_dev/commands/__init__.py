"""The verbs of the launcher that only a checkout has."""
