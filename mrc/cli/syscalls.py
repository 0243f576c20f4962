"""Three system calls that Python's `os` does not have, each with what to do where it is missing."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_MADV_POPULATE_WRITE = 23
_MISSING = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})

_libc = ctypes.CDLL(None, use_errno=True)


def rename_new(old: str, new: str, folder_fd: int) -> None:
    """Rename within one folder, atomically, and never over something that exists.

    Raises:
        FileExistsError: `new` exists.
        OSError: the kernel refused for another reason.
    """
    number = _rename_noreplace(old, new, folder_fd)
    if number in _MISSING:
        # Two steps, but as atomic for whoever looks at the new name. A crash between them leaves
        # both names on one file, which the next transfer recognises by its link count.
        os.link(old, new, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
        os.unlink(old, dir_fd=folder_fd)
    elif number:
        raise OSError(number, os.strerror(number), new)


def _rename_noreplace(old: str, new: str, folder_fd: int) -> int:
    """Call renameat2 and return 0 or the errno."""
    try:
        call = _libc.renameat2
    except AttributeError:
        return errno.ENOSYS
    result = call(
        ctypes.c_int(folder_fd),
        ctypes.c_char_p(os.fsencode(old)),
        ctypes.c_int(folder_fd),
        ctypes.c_char_p(os.fsencode(new)),
        ctypes.c_uint(_RENAME_NOREPLACE),
    )
    return ctypes.get_errno() if result else 0


def make_writable(memory: mmap.mmap, offset: int, length_bytes: int) -> bool:
    """Bring a range of a mapped file into memory, ready to be written, without touching its bytes.

    Afterwards writing to it faults no more, neither for each page nor, with a signal that ends the
    process, because the disk is full. Returns whether the kernel did it: older ones cannot.
    """
    start = ctypes.c_char.from_buffer(memory, offset)
    address = ctypes.addressof(start)
    del start
    pages = address & ~(mmap.PAGESIZE - 1)
    size = address + length_bytes - pages
    advice = ctypes.c_int(_MADV_POPULATE_WRITE)
    result: int = _libc.madvise(ctypes.c_void_p(pages), ctypes.c_size_t(size), advice)
    return result == 0


def start_writeback(fd: int, offset: int, length_bytes: int) -> None:
    """Ask the kernel to begin writing a range to the disk now, without waiting for it.

    Spreads the work over the transfer, so that the flush at its end has little left. Only advice:
    where the call is missing or refused nothing is lost.
    """
    try:
        call = _libc.sync_file_range
    except AttributeError:
        return
    call(
        ctypes.c_int(fd),
        ctypes.c_int64(offset),
        ctypes.c_int64(length_bytes),
        ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
    )
