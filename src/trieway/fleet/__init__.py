"""The fleet on one machine, and the commands that look at a running one. Above router and worker; knows no torch."""
