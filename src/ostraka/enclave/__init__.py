"""The enclave's service: rounds on a clock, over gRPC, with storage that survives a crash.

open_round  one open round: who has sent what, and the spool that holds it
workers     the workers that are connected, as the round's driver sees them
engine      opens, closes, measures and publishes one round after the other
servicer    answers clients and workers
limits      keeps any peer from starving the others
status      what an operator may see: status and metrics
run         puts it all together, from a federation file to a running service
"""
