"""Sends calls over HTTP: connections, stream reading, pacing, client processes, and what servers tell of themselves."""
