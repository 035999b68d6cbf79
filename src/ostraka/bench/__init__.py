"""Measures what the roles and kernels cost, in CPU seconds and in memory.

kernels    one table of stages, timed side by side
calibrate  what `distances="auto"` needs to know of this machine
"""
