"""The few sizes that batches have: numbers of three significant bits, such as 64, 56, 48, 40, 32, 28 ... 8, 7, 6 ... 1.

oneDNN makes a kernel for every number of rows that it meets and keeps it a while (`runtime.bound_kernel_caches`). Where
the sizes are few, the kernels are soon all there.
"""


def round_up(size: int) -> int:
    """The least of these sizes that is no less than `size`.

    >>> [round_up(size) for size in (7, 8, 9, 15, 17, 40, 41)]
    [7, 8, 10, 16, 20, 40, 48]
    """
    spare = max(0, (size - 1).bit_length() - 3)
    return -(-size >> spare) << spare


def round_down(size: int) -> int:
    """The greatest of these sizes that is no more than `size`.

    >>> [round_down(size) for size in (7, 8, 9, 15, 17, 40, 41)]
    [7, 8, 8, 14, 16, 40, 40]
    """
    spare = max(0, size.bit_length() - 3)
    return size >> spare << spare
