"""Integrity of stored bytes and rows: verification, scrubbing, repair, restore tests."""
