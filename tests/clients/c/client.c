/* A small program as people write it: weights that stay, requests that give back what they take, and a
   cache that forgets. It says "done" and ends with its input. */

#include <stdio.h>
#include <stdlib.h>

#include "cuda.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

/* 4 times 32 MiB, which stay. */
__attribute__((noinline)) void load_weights(void)
{
    for (int layer = 0; layer < 4; layer++) {
        CUdeviceptr weights;
        check(cuMemAlloc(&weights, 32 * MIB), "weights");
    }
}

/* 3 MiB and 5 KiB, both given back. */
__attribute__((noinline)) void handle_request(void)
{
    CUdeviceptr input, output;
    check(cuMemAlloc(&input, 3 * MIB), "input");
    check(cuMemAlloc(&output, 5 * KIB), "output");
    check(cuMemFree(input), "free input");
    check(cuMemFree(output), "free output");
}

/* 1 MiB that nobody frees. */
__attribute__((noinline)) void fill_cache(void)
{
    CUdeviceptr entry;
    check(cuMemAlloc(&entry, MIB), "entry");
}

/* More than the device has. */
__attribute__((noinline)) void ask_too_much(void)
{
    CUdeviceptr pointer;
    if (cuMemAlloc(&pointer, (size_t)1 << 40) != CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "1 TiB was to be had\n");
        exit(1);
    }
}

/* One page-locked and one managed buffer of each pair are kept. */
__attribute__((noinline)) void stage_input(void)
{
    void *pinned[2];
    CUdeviceptr managed[2];
    for (int i = 0; i < 2; i++) {
        check(cuMemAllocHost(&pinned[i], 2 * MIB), "pinned");
        check(cuMemAllocManaged(&managed[i], 8 * MIB, CU_MEM_ATTACH_GLOBAL), "managed");
    }
    check(cuMemFreeHost(pinned[0]), "free pinned");
    check(cuMemFree(managed[0]), "free managed");
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuCtxCreate(&context, 0, device), "cuCtxCreate");
    load_weights();
    for (int request = 1; request <= 300; request++) {
        handle_request();
        if (request % 3 == 0)
            fill_cache();
    }
    ask_too_much();
    stage_input();
    puts("done");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
