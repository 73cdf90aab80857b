/* The CUDA runtime, as torch's libraries call it, of GPUs that compute nothing: memory is the host's, copies are made,
   kernels are not run. As with the real one, a process forked from one that has asked for GPUs has none. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

#define MOST_BLOCKS 65536
enum { DEVICE, HOST };
static struct block { char *start; size_t size; int kind, device; } blocks[MOST_BLOCKS];
static int num_blocks;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current;

static size_t total(void) {
    const char *told = getenv("PRETENDED_GIGABYTES");
    return (size_t)(atof(told ? told : "141") * 1e9);
}

static int is_forked(void) {
    static int first;
    if (!first) first = getpid();
    return first != getpid();
}

static cudaError_t keep(void *start, size_t size, int kind) {
    if (start == MAP_FAILED) return cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    if (num_blocks == MOST_BLOCKS) abort();
    blocks[num_blocks++] = (struct block){start, size, kind, current};
    if (kind == DEVICE) used += size;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static struct block *find(const void *p) {
    for (int i = 0; i < num_blocks; i++)
        if ((char *)p >= blocks[i].start && (char *)p < blocks[i].start + blocks[i].size) return blocks + i;
    return NULL;
}

static cudaError_t drop(void *p, int is_mapped) {
    pthread_mutex_lock(&lock);
    struct block *found = find(p);
    if (found) {
        if (found->kind == DEVICE) used -= found->size;
        if (is_mapped) munmap(found->start, found->size);
        *found = blocks[--num_blocks];
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* Untouched pages cost nothing: a model may be larger than this host's memory. */
static void *pages(size_t size) {
    return mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

cudaError_t cudaMalloc(void **p, size_t size) {
    if (used + size > total()) return cudaErrorMemoryAllocation;
    return keep(*p = pages(size), size, DEVICE);
}
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) { return keep(*p = pages(size), size, HOST); }
cudaError_t cudaHostRegister(void *p, size_t size, unsigned flags) { return keep(p, size, HOST); }
cudaError_t cudaHostUnregister(void *p) { return drop(p, 0); }
cudaError_t cudaFree(void *p) { return drop(p, 1); }
cudaError_t cudaFreeHost(void *p) { return drop(p, 1); }
cudaError_t cudaMemGetInfo(size_t *free, size_t *all) {
    *all = total();
    *free = *all - used;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *told, const void *p) {
    struct block *found = find(p);
    memset(told, 0, sizeof *told);
    if (!found) return cudaSuccess;
    told->device = found->device;
    told->type = found->kind == HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    told->devicePointer = (void *)p;
    told->hostPointer = found->kind == HOST ? (void *)p : NULL;
    return cudaSuccess;
}

/* Within a GPU only what is small: the pages of large tensors shall stay untouched. */
static void copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    if (kind != cudaMemcpyDeviceToDevice || size < 16 << 20) memcpy(to, from, size);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    copy(to, from, size, kind);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    copy(to, from, size, kind);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t size) {
    if (size < 1 << 20) memset(p, value, size);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t stream) { return cudaMemset(p, value, size); }

cudaError_t cudaGetDeviceCount(int *count) {
    const char *told = getenv("PRETENDED_GPUS");
    *count = is_forked() ? 0 : atoi(told ? told : "1");
    return is_forked() ? cudaErrorInitializationError : cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    current = device;
    return is_forked() ? cudaErrorInitializationError : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *told, int device) {
    memset(told, 0, sizeof *told);
    strcpy(told->name, "NVIDIA H200");
    told->major = 9;
    told->totalGlobalMem = total();
    told->multiProcessorCount = 132;
    told->warpSize = 32;
    told->maxThreadsPerBlock = told->maxThreadsDim[0] = told->maxThreadsDim[1] = 1024;
    told->maxThreadsDim[2] = 64;
    told->maxGridSize[0] = 2147483647;
    told->maxGridSize[1] = told->maxGridSize[2] = 65535;
    told->maxThreadsPerMultiProcessor = 2048;
    told->maxBlocksPerMultiProcessor = 32;
    told->regsPerBlock = told->regsPerMultiprocessor = 65536;
    told->sharedMemPerBlock = 49152;
    told->sharedMemPerBlockOptin = 232448;
    told->sharedMemPerMultiprocessor = 233472;
    told->reservedSharedMemPerBlock = 1024;
    told->totalConstMem = 65536;
    told->l2CacheSize = 50 << 20;
    told->memoryBusWidth = 6144;
    told->concurrentKernels = told->unifiedAddressing = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    *value = attribute(which);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    snprintf(id, size, "0000:%02x:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* All is done when it is asked for: an event is the time at which it was recorded. */
cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = calloc(1, 64); return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)event = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = *(double *)to - *(double *)from;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { *stream = calloc(1, 64); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { free(stream); return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *with) { call(with); return cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *with, unsigned flags) {
    call(stream, cudaSuccess, with);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *told, const void *kernel) {
    memset(told, 0, sizeof *told);
    told->maxThreadsPerBlock = 1024;
    told->binaryVersion = told->ptxVersion = 90;
    told->numRegs = 64;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel, int threads,
                                                                   size_t shared, unsigned flags) {
    *count = 2;
    return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) {
    static char memory[1 << 20];
    *p = memory;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), name);
    if (result) *result = *entry ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
const char *cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "error"; }
const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

/* What compiled kernels call to make themselves known and to be launched. */
void **__cudaRegisterFatBinary(void *binary) { static void *handle[8]; return handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction() {}
void __cudaRegisterVar() {}
char __cudaInitModule(void **handle) { return 1; }
static __thread struct { dim3 grid, block; size_t shared; void *stream; } next;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    next.grid = grid;
    next.block = block;
    next.shared = shared;
    next.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = next.grid;
    *block = next.block;
    *shared = next.shared;
    *(void **)stream = next.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
