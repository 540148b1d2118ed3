"""The process's allocator: freed pages kept instead of given back.

glibc gives every block over 32 MB back to the kernel and takes fresh, zeroed pages for the next one; that costs several
times the arithmetic done on them. Training allocates the same sizes at every step, so keeping them costs no more memory
at the peak.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def reuse_pages() -> bool:
    """Tell glibc's malloc to keep freed memory in the process. True where it took effect; other allocators are left
    alone.

    This is a setting of the whole process: `mpd-agl` commands make it at their start, a library import does not.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
