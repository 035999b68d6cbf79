"""A client across a network: it dials the enclave, verifies it, retries and remembers.

api           Client, the class that training code uses
session       one call of the user: follow the chain, join the open round, get its model
upload        one update, from its sealing to its round's outcome
attesting     verifies the enclave before anything is sent to it
following     the chain of charters and receipts
memory        what is kept between runs
outgoing      what goes out in place of an update: momentum, error feedback, and the format
momentum      a running mean of a client's updates
kept          what a client keeps from one number to the next
voting        confirms outcomes between rounds, in a thread or as a witness
abandoning    goes on after the state of an enclave was lost
connection    requests, retries, timeouts, and what gRPC's answers mean
events        what is waited for, and where that is reported
results       models, outcomes, and named arrays as one vector
"""
