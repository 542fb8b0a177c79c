"""Development tools: the local stack, the demo and the installation. A wheel does not carry them."""
