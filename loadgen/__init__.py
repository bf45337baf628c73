"""Workloads, traces, arrivals, the load generator's runs and reports, and (in `sim`) the simulator."""
