"""A client across a network: one that dials in, doubts, retries and remembers.

api           Client, the class that training code uses
session       one call of the user: follow the chain, join the open round, get its model
submitting    one update, brought to the round's outcome whatever fails on the way
delivering    one sealed upload, until the round is published or void
uploading     the stream of tiles
attesting     who is the enclave?
following     the chain of charters and receipts
downloading   models by their digest
memory        what is kept between runs
locking       one process at a time, when that changes
connection    requests, retries and what gRPC's answers mean
patience      how long to go on
events        what is waited for
reporting     and where that is told
packing       named arrays, and the one vector that they make up
"""
