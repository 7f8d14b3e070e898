"""The algorithms, each an RLlib `Algorithm` subclass in a folder of its own."""
