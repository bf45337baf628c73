"""The worker's decisions, pure: page pool, radix cache, text cover, generated memory, scheduler.

Values, `now` and an rng come in, values go out; no torch, threads, clocks, files or sockets.
"""
