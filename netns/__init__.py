"""The Linux testbed of MRC: fabrics of network namespaces that can be broken in every way.

It uses the public interface and the command lines of `mrc` only, never its inside.
"""
