"""Measures what the roles and kernels cost, in CPU seconds and in memory, and draws it.

Benchmarks:
    peers       the same updates through Ostraka, Flower and ByzFL; `entrants` has each of them
    paper       the paper's figures and its headline; `paper_measurements` has each measurement
    scale       how cost grows with clients and values; `fit` has fits and forecasts
    leakage     what one worker learns, by attacking; `leave_out` has what the host learns
    confirmations  what confirming an outcome takes, step by step
    rules       what a rule costs beside the enclave's round; networks against sorts
    kernels     the stages of a round, timed side by side
    service     a whole service over loopback, process by process: `service_rounds` starts and
                watches it, `service_clients` sends, and `bare_loop` is what it is measured by
    check       has anything become slower? And the costs that `distances="auto"` needs

What they share:
    process         a process of its own, with its threads pinned, and how it reports
    machine         CPU time, memory, and a description of the machine
    parties         a made-up federation, and sealed updates to measure
    whole_round     one round by the real roles, with a clock for every party
    enclave_memory  the memory of an enclave in a process of its own
    results         a folder of figures, and the parts of a benchmark that was stopped
    report          the page of such a folder
"""
