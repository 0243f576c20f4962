"""What hosts of the lab run: senders and receivers that write down what they see.

Each is a process of its own inside a host: `python -m netns.traffic.NAME JSON`. It says `ready` or
`connected` on standard output and leaves one JSON file when its time is up, its standard input
ends, it gets SIGTERM, or whoever started it is gone. Times are the machine's monotonic clock, which
all hosts of a lab share.
"""
