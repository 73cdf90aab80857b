/* What agent/sampling/sweeps.py does for each sample of NIC counters, compiled. A thread that wakes for a few system calls finds
   its caches cold: here they fill with two pages of code, and the interpreter is not needed at all. */

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { DONE, ENDED, TROUBLE };

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Whether the file holds a number of 64 bits, and which. */
static int read_number(int fd, uint64_t *value) {
    char text[24];
    ssize_t size = pread(fd, text, sizeof text, 0), at = 0;
    uint64_t found = 0;
    while (at < size && text[at] == ' ')
        at++;
    ssize_t first = at;
    for (; at < size && text[at] >= '0' && text[at] <= '9'; at++)
        if (__builtin_mul_overflow(found, 10u, &found) || __builtin_add_overflow(found, (uint64_t)(text[at] - '0'), &found))
            return 0;
    *value = found;
    return at > first && (at == size || text[at] == '\n' || text[at] == ' ');
}

/* Up to `most` sweeps over `counters` files, each at a tick of `timer` (none: at once), as rows {began, ended, values...}
   of `stride` words, in ns. `count` is of all rows ever written; the next one goes to place `count` modulo `capacity`. */
int holdfast_sweep(int timer, const int *files, int counters, uint64_t *rows, uint64_t capacity, uint64_t stride,
                   _Atomic uint64_t *count, uint64_t most) {
    uint64_t ticks, next = atomic_load_explicit(count, memory_order_relaxed);
    while (most-- > 0) {
        while (timer >= 0 && read(timer, &ticks, sizeof ticks) < 0)
            if (errno != EINTR)
                return ENDED;
        uint64_t *row = rows + next % capacity * stride;
        row[0] = now();
        for (int i = 0; i < counters; i++)
            if (!read_number(files[i], row + 2 + i))
                return TROUBLE;
        row[1] = now();
        atomic_store_explicit(count, ++next, memory_order_release);
    }
    return DONE;
}

uint64_t holdfast_swept(const _Atomic uint64_t *count) {
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(count, memory_order_acquire);
}

static uint32_t fits(uint64_t value) {
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

/* Of `many` rows: when each began after `since`, in us, and what each counter went up by from row to row (the first
   from `last`, which becomes the newest), times its scale; `many` numbers of each, one kind after the other. Whether a
   counter went down, or by more than fits: then what is found of counters is not to be used, and `last` stays. */
int holdfast_grown(const uint64_t *rows, uint64_t many, uint64_t stride, int counters, uint64_t since, uint64_t *last,
                   const uint64_t *scales, uint32_t *found) {
    for (uint64_t k = 0; k < many; k++)
        found[k] = rows[k * stride] < since ? 0 : fits((rows[k * stride] - since) / 1000);
    for (int i = 0; i < counters; i++) {
        uint64_t before = last[i];
        for (uint64_t k = 0; k < many; k++) {
            uint64_t value = rows[k * stride + 2 + i], up;
            if (value < before || __builtin_mul_overflow(value - before, scales[i], &up) || up > UINT32_MAX)
                return 1;
            found[(i + 1) * many + k] = (uint32_t)up;
            before = value;
        }
    }
    for (int i = 0; many && i < counters; i++)
        last[i] = rows[(many - 1) * stride + 2 + i];
    return 0;
}
