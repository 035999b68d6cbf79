"""A federation of real processes on this machine, with attackers in it, to look at.

settings     what to show
attacks      what attackers send
task         what each client computes: a synthetic task, as a pure function
client       what a client's process runs
tether       what every process runs first, so that none outlives the demo
children     starts processes, reads their logs and ends them
deployment   a federation's folder, and the processes of it
progress     where the federation is, from what its enclave logs
records      what one client writes down for the demo to look at
review       what a round did, checked against what the clients must have sent
run          all of it together
"""
