"""The targets that Weir has; each is imported where it is used."""
