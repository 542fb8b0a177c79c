"""Stored bytes and rows, read again: verification, scrubbing, repair, restore tests."""
