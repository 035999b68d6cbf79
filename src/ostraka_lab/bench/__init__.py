"""Measures what the roles and kernels cost, in CPU seconds and in memory, and draws it.

Commands, each a package or a module of its own:
    peers      the same updates through Ostraka, Flower and ByzFL
    paper      the paper's figures and its headline
    scale      how cost grows with clients and dimensions
    leakage    what one worker learns, by attacking
    check      has anything become slower?
    kernels    one table of stages, timed side by side
    calibrate  what `distances="auto"` needs to know of this machine

What they share:
    launch, child         a process of its own, with its threads pinned; how it reports
    whole_round, rounds   one round by the real roles, with a clock for every party
    stages, workload      the parts of a round, one by one
    meter, stopwatch      CPU and wall time
    memory, machine       memory, and the rest of the machine
    spread                what repeated runs say
    results, report       a folder of figures, and its page
"""
