"""A federation carried by another framework's messages. Nothing here knows the framework.

messages     what the host's side and a node say to each other, as bytes
relay        the host's side: the rounds, between a `Carrier` (the framework) and an enclave
remote       the enclave's service, across a network
in_process   or an enclave in the same process, for simulations
node         a node's side: verifies the enclave, joins a round, seals an update
trust        what a node accepts as an enclave
node_state   what a node remembers

An adapter turns these bytes into its framework's messages: see `ostraka.flower`.
"""
