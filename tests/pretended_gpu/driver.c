/* The CUDA driver (libcuda.so.1) of GPUs that compute nothing, as torch and Triton call it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define CONTEXT ((CUcontext)0x1000)
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) {
    const char *told = getenv("PRETENDED_GPUS");
    *count = atoi(told ? told : "1");
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int number) { *device = number; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    strncpy(name, "NVIDIA H200", size);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    *value = attribute(which);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (flags) *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = CONTEXT; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = CONTEXT; return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (context) *context = CONTEXT;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = calloc(1, 64); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = calloc(1, 64);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *size, CUmodule module, const char *name) {
    static char memory[4096];
    *p = (CUdeviceptr)memory;
    if (size) *size = sizeof memory;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr p) {
    if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr *)value = p;
    else *(int *)value = which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) { *text = "error"; return CUDA_SUCCESS; }
CUresult cuGetProcAddress_v2(const char *name, void **entry, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *result) {
    *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (result) *result = *entry ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}
