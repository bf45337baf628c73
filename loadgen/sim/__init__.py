"""The simulator: production router and worker cores on a virtual clock, with a network and faults between them. Pure.

`Fleet` in fleet.py is the entrance; config.py says what can be set.
"""
