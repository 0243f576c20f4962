"""What hosts of the lab run: senders and receivers that write down what they see.

Each is a process of its own inside a host: `python -m netns.traffic.NAME JSON`. It says `ready` on
standard output, ends when its standard input ends or its time is up, and leaves one JSON file.
Times are the machine's monotonic clock, which all hosts of a lab share.
"""
