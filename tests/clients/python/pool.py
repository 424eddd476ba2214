"""A worker pool of forked processes, as data loaders and servers start it.

The parent has a context and memory before it forks. In a worker the driver that it inherited is of no
use: every call gives 3, not initialised. A worker that starts anew, from an interpreter of its own,
initialises the driver itself and allocates. Says who is who, when all have done so, and ends with its
input.
"""

import json
import multiprocessing
import os
import sys

from cuda.bindings import driver

MIB = 1 << 20
NOT_INITIALIZED = driver.CUresult.CUDA_ERROR_NOT_INITIALIZED


def ok(answer):
    """The values of an answer that must be a success."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1:]


def begin():
    ok(driver.cuInit(0))
    (device,) = ok(driver.cuDeviceGet(0))
    (context,) = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(context))


def forked(number, barrier):
    """Two allocations that are refused."""
    results = [driver.cuMemAlloc((number + 1) * MIB)[0] for _ in range(2)]
    assert results == [NOT_INITIALIZED] * 2, results
    assert driver.cuInit(0)[0] == NOT_INITIALIZED
    barrier.wait()
    barrier.wait()


def spawned(number, barrier):
    """10 + number allocations of 1 MiB, of which `number` are given back."""
    begin()
    pointers = [ok(driver.cuMemAlloc(MIB))[0] for _ in range(10 + number)]
    for pointer in pointers[:number]:
        ok(driver.cuMemFree(pointer))
    barrier.wait()
    barrier.wait()


def main():
    begin()
    for _ in range(5):
        ok(driver.cuMemAlloc(16 * MIB))
    workers = {}
    barriers = []
    for kind, work in ("fork", forked), ("spawn", spawned):
        start = multiprocessing.get_context(kind)
        barrier = start.Barrier(5)
        barriers.append(barrier)
        group = [start.Process(target=work, args=(n, barrier)) for n in range(4)]
        for worker in group:
            worker.start()
        workers[kind] = group
    for barrier in barriers:
        barrier.wait()
    pids = {kind: [worker.pid for worker in group] for kind, group in workers.items()}
    print(json.dumps({"parent": os.getpid()} | pids), flush=True)
    sys.stdin.read()
    for barrier in barriers:
        barrier.wait()
    for group in workers.values():
        for worker in group:
            worker.join()
            assert worker.exitcode == 0, worker


if __name__ == "__main__":
    main()
