"""Real models, real data and real attacks, to see what a defence is worth; and the benchmarks.

Experiments:
    experiment    what to run, who takes part in it, and how good a model is
    attacks       what attackers send, or train on
    defence       what the enclave does with updates, in the clear
    data          data sets, and which client holds which part
    models        the networks, in PyTorch
    training      local training
    names         names that users give

How they are run:
    run           over the real services, each a process of its own
    baselines     the same federation in the clear
    compare       all of them, over a list of attacks
    client        a process of clients
    deployment    a federation's folder, its services and their progress
    children      starts processes, reads their logs and ends them

What is kept and shown:
    folder        the folder of one run
    metrics       a line a round
    report        a page of text, tables and plots
    run_report    the pages of a run and of a comparison

bench             benchmarks
commands          the command line: demo, train, compare, data and bench
"""
