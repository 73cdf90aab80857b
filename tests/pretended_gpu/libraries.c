/* What of cuBLAS and NCCL has to give something back. One rank's collective is a copy; several ranks hear only themselves. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int made(void **handle) { *handle = calloc(1, 4096); return 0; }
int cublasCreate_v2(void **handle) { return made(handle); }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
int cublasLtMatmulDescCreate(void **handle, int compute, int scale) { return made(handle); }
int cublasLtMatrixLayoutCreate(void **handle, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    return made(handle);
}
int cublasLtMatmulPreferenceCreate(void **handle) { return made(handle); }
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;
int cublasLtMatmulAlgoGetHeuristic(void *lt, void *what, void *a, void *b, void *c, void *d, void *preference, int most,
                                   Heuristic found[], int *count) {
    memset(found, 0, sizeof found[0]);
    *count = 1;
    return 0;
}

typedef struct { char bytes[128]; } Id;
int ncclGetVersion(int *version) { *version = 22907; return 0; }
int ncclGetUniqueId(Id *id) { memset(id, 7, sizeof *id); return 0; }
int ncclCommInitRank(void **comm, int ranks, Id id, int rank) { return made(comm); }
int ncclCommInitRankConfig(void **comm, int ranks, Id id, int rank, void *config) { return made(comm); }
int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, void *id, void *config) { return made(comm); }
int ncclCommSplit(void *comm, int color, int key, void **split, void *config) { return made(split); }
int ncclCommGetAsyncError(void *comm, int *error) { return *error = 0; }
const char *ncclGetErrorString(int error) { return "error"; }
const char *ncclGetLastError(void *comm) { return ""; }
static int copied(const void *from, void *to, size_t count, int type) {
    static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    if (from != to) memcpy(to, from, count * (type < 10 ? sizes[type] : 1));
    return 0;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type) { return copied(from, to, count, type); }
int ncclAllGather(const void *from, void *to, size_t count, int type) { return copied(from, to, count, type); }
int ncclReduceScatter(const void *from, void *to, size_t count, int type) { return copied(from, to, count, type); }
int ncclBroadcast(const void *from, void *to, size_t count, int type) { return copied(from, to, count, type); }
