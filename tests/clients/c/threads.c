/* 64 threads that allocate and free at the same time, each in sizes of its own; each leaves one
   allocation in 50 behind. It says "done" and ends with its input. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda.h"

#define THREADS 64
#define CALLS 500
#define KEPT_EACH 50

static CUcontext context;

static void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

/* Thread t's call c asks for (t + 1) * 512 + c bytes. */
static void *work(void *argument)
{
    size_t thread = (size_t)argument;
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (size_t call = 0; call < CALLS; call++) {
        CUdeviceptr pointer;
        check(cuMemAlloc(&pointer, (thread + 1) * 512 + call), "cuMemAlloc");
        if (call % KEPT_EACH != 0)
            check(cuMemFree(pointer), "cuMemFree");
    }
    return NULL;
}

int main(void)
{
    CUdevice device;
    pthread_t threads[THREADS];
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuCtxCreate(&context, 0, device), "cuCtxCreate");
    for (size_t t = 0; t < THREADS; t++)
        if (pthread_create(&threads[t], NULL, work, (void *)t) != 0)
            return 1;
    for (size_t t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    puts("done");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
