"""MRC 1.0 on the wire: bytes and fields, and nothing else.

`fields` holds the header tables, `control` the control packets, `writes` the data packets one by
one and `runs` many at once as numpy columns, `icrc` the invariant CRC, `psn` the 24-bit arithmetic,
`dump` text for people.
"""
