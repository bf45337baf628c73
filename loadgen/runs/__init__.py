"""Whole runs over HTTP: one, several points, the highest rate that holds; and what a terminal shows meanwhile."""
