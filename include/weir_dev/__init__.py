"""Development tools: the local stack, the demo, chaos tests and the installation. A wheel does not carry them."""
