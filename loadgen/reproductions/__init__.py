"""`trieway sim reproduce`: the experiments of the RadixAttention paper in simulation, next to what it published."""
