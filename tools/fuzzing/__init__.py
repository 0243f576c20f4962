"""Coverage-guided fuzzing behind `tools/fuzz`: hostile bytes against everything that reads them.

`targets` says which there are; each is a module with one function `run`, which takes any bytes,
turns them into what a peer might send, and raises only if the product did something wrong. They
need nothing but the product, so that the tests replay kept inputs without the fuzzing engine, which
only `worker` knows. `corpus` says where inputs lie, `campaign` starts workers and reads what they
print.
"""
