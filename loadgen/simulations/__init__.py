"""`trieway sim`: what surrounds the pure simulator: flags, progress, processor time, files."""
