"""How far the simulator is from a real fleet: `python -m tests.tools.honesty`, or `make honesty`.

A fleet of CPU workers is started, calibrated and driven with a few workloads; the simulator plays the same calls with
the calibration alone; a table shows both, with what the fleet differs from itself.
"""
