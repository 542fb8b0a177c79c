"""Soaks of one long course each. They are a package, so that they find what tests of the whole stack share."""
