"""The commands mrc-send and mrc-recv: files and streams by remote writes.

Uses the public api only, and never a packet, a path or a socket of the data plane itself.
"""
