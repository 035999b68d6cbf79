"""The enclave's service: rounds on a clock, over gRPC, with storage that survives a crash.

__main__     the entry of the enclave's process: `python -m ostraka.enclave`
commands     what its commands do
service      starts the service that a federation file describes
engine       opens, closes, measures and publishes one round after the other
open_round   one open round: who has sent what, and the spool that holds it
servicer     answers clients and workers
workers      the connected workers, as the driver of a round sees them
limits       per-peer limits on concurrency, rate and time
status       the status and the metrics that an operator may see
hardening    what an ordinary process can give up
measurement  the list of the code that this process loads, and its digest
migration    hands the state to a successor
peering      the attested channel between a lead and its shards
storage/     sealed files on the host's disk
platform/    evidence and sealing keys from the machine's TEE
"""
