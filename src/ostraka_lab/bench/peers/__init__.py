"""The same updates through Ostraka and through its peers, each in a process of its own.

contest      the updates, and who attacks
reference    who should be selected, in float64
entrant      what a peer brings: its inputs, and a function to time
clear        a Gram matrix in the clear
floor        open everything once and average
flower       Flower's MultiKrum
byzfl        ByzFL's MultiKrum, torch and numpy
ours         Ostraka, by masking
turn         the process of one peer
installed    which peers are here, and how to get the others
match        everybody in turn, and the table
"""
