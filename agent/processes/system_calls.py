"""Numbers of the system calls in which a process can wait, by architecture (the kernel's syscall tables)."""

_X86_64: dict[str, int] = {
    "read": 0, "write": 1, "open": 2, "close": 3, "poll": 7, "mmap": 9, "munmap": 11, "ioctl": 16, "pread64": 17,
    "pwrite64": 18, "readv": 19, "writev": 20, "select": 23, "sched_yield": 24, "msync": 26, "madvise": 28, "pause": 34,
    "nanosleep": 35, "sendfile": 40, "connect": 42, "accept": 43, "sendto": 44, "recvfrom": 45, "sendmsg": 46,
    "recvmsg": 47, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "wait4": 61, "semop": 65, "msgsnd": 69,
    "msgrcv": 70, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "rename": 82, "unlink": 87,
    "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sync": 162, "futex": 202, "io_getevents": 208,
    "restart_syscall": 219, "semtimedop": 220, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232,
    "mq_timedsend": 242, "mq_timedreceive": 243, "waitid": 247, "openat": 257, "newfstatat": 262, "unlinkat": 263,
    "pselect6": 270, "ppoll": 271, "splice": 275, "sync_file_range": 277, "epoll_pwait": 281, "fallocate": 285,
    "accept4": 288, "preadv": 295, "pwritev": 296, "recvmmsg": 299, "syncfs": 306, "sendmmsg": 307,
    "copy_file_range": 326, "preadv2": 327, "pwritev2": 328, "statx": 332, "io_uring_enter": 426, "clone3": 435,
    "epoll_pwait2": 441, "futex_waitv": 449, "futex_wait": 455,
}  # fmt: skip
_AARCH64: dict[str, int] = {
    "io_getevents": 4, "epoll_pwait": 22, "fcntl": 25, "ioctl": 29, "flock": 32, "unlinkat": 35, "ftruncate": 46,
    "fallocate": 47, "openat": 56, "close": 57, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67,
    "pwrite64": 68, "preadv": 69, "pwritev": 70, "sendfile": 71, "pselect6": 72, "ppoll": 73, "splice": 76,
    "newfstatat": 79, "sync": 81, "fsync": 82, "fdatasync": 83, "sync_file_range": 84, "exit_group": 94, "waitid": 95,
    "futex": 98, "nanosleep": 101, "clock_nanosleep": 115, "sched_yield": 124, "restart_syscall": 128,
    "rt_sigsuspend": 133, "rt_sigtimedwait": 137, "mq_timedsend": 182, "mq_timedreceive": 183, "msgrcv": 188,
    "msgsnd": 189, "semtimedop": 192, "semop": 193, "accept": 202, "connect": 203, "sendto": 206, "recvfrom": 207,
    "sendmsg": 211, "recvmsg": 212, "munmap": 215, "clone": 220, "execve": 221, "mmap": 222, "msync": 227,
    "madvise": 233, "accept4": 242, "recvmmsg": 243, "wait4": 260, "syncfs": 267, "sendmmsg": 269, "renameat2": 276,
    "copy_file_range": 285, "preadv2": 286, "pwritev2": 287, "statx": 291, "io_uring_enter": 426, "clone3": 435,
    "epoll_pwait2": 441, "futex_waitv": 449, "futex_wait": 455,
}  # fmt: skip

ARCHITECTURES: dict[str, dict[int, str]] = {
    "x86_64": {number: name for name, number in _X86_64.items()},
    "aarch64": {number: name for name, number in _AARCH64.items()},
}
