"""A YARN for tests, and the environment of Python in its containers."""
