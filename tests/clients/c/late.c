/* Loads libcuda only when it is told where: a path on a line of its input. After another line 10 allocations of 2 MiB,
   of which 4 are given back. It says "ready", "loaded", "done", and ends with its input. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static void *symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return address;
}

static void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

int main(void)
{
    char path[4096];
    puts("ready");
    fflush(stdout);
    if (fgets(path, sizeof path, stdin) == NULL)
        return 1;
    path[strcspn(path, "\n")] = 0;
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    CUresult (*init)(unsigned int) = symbol(library, "cuInit");
    CUresult (*create)(CUcontext *, unsigned int, CUdevice) = symbol(library, "cuCtxCreate_v2");
    CUresult (*alloc)(CUdeviceptr *, size_t) = symbol(library, "cuMemAlloc_v2");
    CUresult (*give_back)(CUdeviceptr) = symbol(library, "cuMemFree_v2");
    puts("loaded");
    fflush(stdout);
    if (fgets(path, sizeof path, stdin) == NULL)
        return 1;

    CUcontext context;
    CUdeviceptr pointers[10];
    check(init(0), "cuInit");
    check(create(&context, 0, 0), "cuCtxCreate");
    for (int i = 0; i < 10; i++)
        check(alloc(&pointers[i], (size_t)2 << 20), "cuMemAlloc");
    for (int i = 0; i < 4; i++)
        check(give_back(pointers[i]), "cuMemFree");
    puts("done");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
