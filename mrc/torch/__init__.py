"""The backend `mrc` of torch.distributed: importing this module registers it.

    import mrc.torch
    torch.distributed.init_process_group("mrc")

Everything else is torch's own: `DistributedDataParallel`, FSDP, `new_group`, `async_op=True`.
Tensors are on the CPU, and used where they are. What cannot be done is refused by name: complex,
sparse and quantized tensors, tensors of other devices, receiving from any source.

`MRC_SOCKET_IFNAME`, or what NCCL or Gloo were given, chooses the interfaces, each of which is a
plane; `MRC_IDENTITY` and `MRC_TOKEN` put everything behind locks (see `mrc.collectives.bootstrap`).
`MRC_DETECT_S`, the same on all ranks, is after how many seconds of silence a rank has failed
(0.1 to 86400; 5 where it is not set).

`mrc.torch.worlds` finds the other ranks, `process_group` has the operations, `tensors` what memory
they work on, `work` what is returned for one under way.
"""

import torch.distributed as dist

from mrc.torch.process_group import ProcessGroupMrc

BACKEND = "mrc"

__all__ = ["BACKEND", "ProcessGroupMrc"]

if not hasattr(dist.Backend, BACKEND.upper()):
    dist.Backend.register_backend(
        BACKEND, ProcessGroupMrc.create, extended_api=True, devices=["cpu"]
    )
