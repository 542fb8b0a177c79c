"""What can be wrong with a set-up: asking, judging, and how to mend it."""
