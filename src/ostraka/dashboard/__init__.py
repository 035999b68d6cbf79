"""A live page over a running federation, for an observer.

`watching` is the one client of the enclave's service: it has the enclave prove itself, verifies
every receipt and its certificate, and asks for the status. `page` draws what it has seen, once for
everybody, and `server` pushes that to browsers. Nothing here can change a federation.
"""
