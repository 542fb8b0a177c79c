"""Tests of the whole stack. They are a package so that what they share ends with the last of them."""
