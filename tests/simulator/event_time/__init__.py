"""Dataflows over event time: rows that come late, a watermark, windows, and a side output."""
