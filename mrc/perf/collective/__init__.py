"""`mrc-perf --coll`: collectives between ranks, with the columns and conventions of nccl-tests.

One module an idea: what a run is (`settings`) and how it is read from the options (`choices`), the
buffers and the call (`exercise`), what is in them and whether it arrived (`contents`), who measures
(`measuring`), what is told (`figures`, `session`), the ranks that are started here (`own_ranks`),
and the two ways a run takes (`runs`).
"""
