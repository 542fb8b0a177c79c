"""The checks of `weir doctor`: what a deployment needs, what was found, and how to correct it."""
