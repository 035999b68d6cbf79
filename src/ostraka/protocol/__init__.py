"""Client, enclave and worker as state machines without I/O. None of them imports another.

A role takes messages and returns messages, and changes its type as it advances. Sockets, files,
clocks and threads belong to its driver: `ostraka.protocol.round` does so in one process.
"""
