"""The verbs of the command line, a module each, with their reports."""
