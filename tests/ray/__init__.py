"""The fleet on a Ray cluster of two nodes on loopback."""
