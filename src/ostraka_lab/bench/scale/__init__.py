"""How cost grows with clients and with dimensions, and what that means for much more of both.

grid      which sizes to measure, within memory and time
cell      one size, in a process of its own
fit       exponents, and a sum of terms, from what was measured
forecast  the sum far beyond what was measured, and what must be split for it
survey    all of it
"""
