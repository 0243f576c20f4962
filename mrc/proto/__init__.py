"""The MRC protocol without input or output.

Nothing here sees a socket, a file, the clock or randomness of its own: `now_ns` and an `rng` are
handed in, runs of packets come in through `Endpoint.receive` and go out through
`Endpoint.transmit`. The same calls with the same arguments give the same trace.
"""
