"""What is behind `tools/profile`: where the microseconds of a run of packets go.

`worker` transfers and has itself sampled by `stacks`, `parts` says which part of the work a sample
belongs to, `report` adds up and tells.
"""
