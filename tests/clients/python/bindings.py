"""A script on NVIDIA's bindings: allocates in every way that they offer, and forgets some of it.

Says "done" and ends with its input.
"""

import sys

from cuda.bindings import driver

KIB = 1 << 10
MIB = 1 << 20


def ok(answer):
    """The value of an answer that must be a success; of several, the list of them."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    values = answer[1:]
    return values[0] if len(values) == 1 else values


def plain():
    """20 times 3 MiB, of which 15 are given back; one request that is too large."""
    pointers = [ok(driver.cuMemAlloc(3 * MIB)) for _ in range(20)]
    for pointer in pointers[:15]:
        ok(driver.cuMemFree(pointer))
    (result, _) = driver.cuMemAlloc(1 << 40)
    assert result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, result


def stream_ordered():
    """8 times 2 MiB on a stream, of which 6 are given back."""
    stream = ok(driver.cuStreamCreate(0))
    pointers = [ok(driver.cuMemAllocAsync(2 * MIB, stream)) for _ in range(8)]
    for pointer in pointers[:6]:
        ok(driver.cuMemFreeAsync(pointer, stream))
    ok(driver.cuStreamSynchronize(stream))


def virtual():
    """5 physical handles of 4 MiB: mapped, unmapped and released but for one, which is only mapped and
    one, which is never mapped."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    size = 4 * MIB
    ok(driver.cuMemCreate(size, properties, 0))
    for turn in range(4):
        handle = ok(driver.cuMemCreate(size, properties, 0))
        address = ok(driver.cuMemAddressReserve(size, 0, 0, 0))
        ok(driver.cuMemMap(address, size, 0, handle, 0))
        if turn < 3:
            ok(driver.cuMemUnmap(address, size))
            ok(driver.cuMemAddressFree(address, size))
            ok(driver.cuMemRelease(handle))


def host():
    """6 times 1 MiB of page-locked memory, of which 4 are given back."""
    pointers = [ok(driver.cuMemHostAlloc(MIB, 0)) for _ in range(6)]
    for pointer in pointers[:4]:
        ok(driver.cuMemFreeHost(pointer))


def managed():
    """3 times 5 KiB, of which one is given back."""
    flags = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
    pointers = [ok(driver.cuMemAllocManaged(5 * KIB, flags)) for _ in range(3)]
    ok(driver.cuMemFree(pointers[0]))


def main():
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(context))
    plain()
    stream_ordered()
    virtual()
    host()
    managed()
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
