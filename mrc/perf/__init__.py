"""mrc-perf: what a network, two hosts and this endpoint carry, measured as RDMA people do it.

One side listens, the other connects and says what is to be measured. Both measure; the connecting
side reports, with the figures of each side under its own name. One module an idea: what a run is
(`settings`), what the two sides say and how (`conversation`, `talk`), the kinds of test
(`bandwidth`, `latency`), who drives (`client`, `serving`), what is told (`report`, `table`,
`explain`).
"""
