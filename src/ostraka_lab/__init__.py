"""Real models, real data and real attacks, to see what a defence is worth.

What is trained and by whom:
    experiment     what to run
    models         the networks, in PyTorch
    parameters     a network as one vector
    data           data sets, and who holds which part
    training       local training
    attacks        what attackers send, or train on
    participant    one client: its part of the data, its training, its attack
    evaluation     how good a model is

Who aggregates:
    clear          plain averaging, and Multi-Krum in the clear
    run            the real services, each a process of its own
    compare        all of them, over a list of attacks

The processes of a run:
    deployment     a federation's folder, and the services of it
    children       starts processes, reads their logs and ends them
    tether         what every process runs first, so that none outlives the run
    client         what a process of clients runs
    clear_process  what a process in the clear runs
    board          where attackers learn of others' updates
    momentum       what clients keep between rounds
    records        models and receipts that clients have checked
    progress       where the federation is, from what its processes log

What is kept:
    folder         the folder of one run
    metrics        a line a round
    report         all of it as pictures
"""
