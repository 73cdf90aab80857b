"""A kernel that writes to an address that is not its own: illegal_access.py ADDRESS. By CUDA's driver alone."""

import ctypes
import sys

STORE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 address)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [address];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0"""

cuda = ctypes.CDLL("libcuda.so.1")
device, context, module, store = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
address = ctypes.c_uint64(int(sys.argv[1], 0))


def call(name: str, *args: object) -> None:
    error = getattr(cuda, name)(*args)
    assert error == 0, f"{name}: {error}"


call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), STORE)
call("cuModuleGetFunction", ctypes.byref(store), module, b"store")
args = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
call("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 0, None, args, None)
print("error", cuda.cuCtxSynchronize(), flush=True)
