/* Stands in for NVIDIA's user-mode driver. It needs of the system what that is known to need, and
   whatever the environment names. Its devices are plain memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FAILED = 304 };
static int problem;

static void *name_itself(void *unused) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)syscall(SYS_gettid));
    int file = open(path, O_RDWR);
    if (file < 0 || write(file, "cuda-EvtHandlr", 14) != 14) problem = FAILED;
    if (file >= 0) close(file);
    return NULL;
}

int cuInit(unsigned flags) {
    pthread_t thread;
    problem = 0;
    if (pthread_create(&thread, NULL, name_itself, NULL)) return FAILED;
    pthread_join(thread, NULL);
    int memory = memfd_create(".nvidia_drv", 0);
    if (memory < 0 || ftruncate(memory, 4L << 30)) problem = FAILED;
    if (memory >= 0) close(memory);
    const char *read = getenv("CUDA_STANDIN_READS"), *call = getenv("CUDA_STANDIN_CALLS");
    if (read && *read) {
        int file = open(read, O_RDONLY);
        if (file < 0) problem = FAILED;
        else close(file);
    }
    if (call && *call && syscall(atol(call), 0, -3, 1, 0, 0) < 0) problem = FAILED;
    if (getenv("CUDA_STANDIN_HANGS")) sleep(3600);
    return problem;
}

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index ? 101 : 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &problem; return 0; }
int cuCtxSetCurrent(void *context) { return context == &problem ? 0 : 201; }
int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    void *block = malloc(size);
    *address = (unsigned long long)block;
    return block ? 0 : 2;
}
int cuMemFree_v2(unsigned long long address) { free((void *)address); return 0; }
int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t count) {
    memset((void *)address, value, count);
    return 0;
}
int cuMemcpyDtoH_v2(void *target, unsigned long long address, size_t count) {
    memcpy(target, (void *)address, count);
    return 0;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == FAILED ? "OS call failed or operation not supported on this OS" : "an error";
    return 0;
}
