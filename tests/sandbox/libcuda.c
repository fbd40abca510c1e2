// Copyright: Contributors to the autopilot.gpu collection
// GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// A stand-in for the driver's libcuda.so.1. Copies move real bytes between real memory, and take the time that the configured
// rate gives them on a virtual clock, which is what events read. It answers from $SANDBOX_NODE/node.table (see libnvidia-ml.c):
// the GPUs are those of the NVML rows, and
//
//     <gpu index|*|system> <function|*> <return code>                     what a function returns; an exported name, cuMemAlloc_v2
//     <gpu index|*|system> <function|*> hang <ignore_term|stop|uninterruptible>
//     <gpu index|*> cuda.<key> 0 <value>                                  keys:
//         h2d d2h                     bytes/s of the copy engines         concurrent_h2d concurrent_d2h   while other GPUs have contexts too
//         kernel_h2d kernel_d2h       bytes/s of our copy kernel          corrupt   a bit is flipped in all that is copied to the device
//         triad                       bytes/s of the memory, by our kernel   fp64 tensor   operations/s of our kernels
//         wrong "<kernel>"            a bit of that kernel's result is flipped, its name without autopilot_ (triad, fp64, tensor)
//         capability                  major compute capability (9)        peer peer.<index>   bytes/s of copies from this GPU to others, to that one
//         peer_access                 0: it cannot reach others' memory   peer_corrupt   a bit is flipped in what it copies to others
//         asleep                      seconds from its first copy for which a GPU's link carries an eighth, as one does that comes up from a lower generation
//         crash "<function>"          the process is ended by SIGSEGV in that function
//
// A rate that is not configured follows from the link. A GPU whose cuInit fails or hangs does so for every process that can see it.
// What a program may get wrong is checked: copies outside an allocation, pageable host memory, no current context. Bytes arrive when the
// stream is synchronised, no earlier. Waiting for an event takes a little real time too, so that others can look while copies are in flight.
// Signatures: CUDA driver API reference.

#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "hang.h"

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, PEER_ACCESS_ENABLED = 704, MISALIGNED = 716,
};
enum { SYSTEM = -2, MOST_GPUS = 16, MOST_ROWS = 4096 };

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

typedef struct { int gpu, any_gpu, code; char function[96], value[160], hang[32]; } Row;
typedef struct Block { char *start; size_t size; int gpu, on_device; struct Block *next; } Block;
enum { NOTHING, COPY, FILL, TRIAD, COUNT, FP64, TENSOR };
// What a stream has to do, with the arguments of the kernel where it is one.
typedef struct { int kind, peer; char *to, *from; size_t size; uint64_t arguments[5]; } Work;
typedef struct { int gpu; double now; Work work; } Stream;
typedef struct { double time; int recorded; } Event;
typedef struct { char *text; } Module;
typedef struct { const char *name; int kind, arguments; } Kernel;
typedef struct { int gpu; } Context;

static Row *rows;
static int row_count, initialised, visible[MOST_GPUS], visible_count, retained[MOST_GPUS];
static Block *blocks;
static Context contexts[MOST_GPUS];
static _Thread_local Context *current;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// ---- the table ----

static void read_table(void) {
    char path[4096], gpu[32], function[96], code[32], rest[1024], *line = NULL;
    size_t size = 0;
    const char *node = getenv("SANDBOX_NODE");
    if (rows) return;
    rows = calloc(MOST_ROWS, sizeof *rows);
    snprintf(path, sizeof path, "%s/node.table", node ? node : ".");
    FILE *table = fopen(path, "re");
    while (table && row_count < MOST_ROWS && getline(&line, &size, table) > 0) {
        rest[0] = 0;
        if (line[0] == '#' || sscanf(line, "%31s %95s %31s %1023[^\n]", gpu, function, code, rest) < 3) continue;
        Row *row = &rows[row_count++];
        row->any_gpu = !strcmp(gpu, "*");
        row->gpu = !strcmp(gpu, "system") ? SYSTEM : atoi(gpu);
        snprintf(row->function, sizeof row->function, "%s", function);
        int quoted = rest[0] == '"';
        snprintf(row->value, sizeof row->value, "%.*s", (int)strcspn(rest + quoted, quoted ? "\"" : " "), rest + quoted);
        if (strcmp(code, "hang")) row->code = atoi(code);
        else snprintf(row->hang, sizeof row->hang, "%.31s", row->value);
    }
    free(line);
    if (table) fclose(table);
}

// An exact GPU beats `*`, then an exact function beats `*`, then the later row wins; `*` as a function is not for `cuda.` keys.
static Row *find(int gpu, const char *function) {
    Row *best = NULL;
    int best_score = -1, is_key = !strncmp(function, "cuda.", 5) || !strncmp(function, "nvml", 4);
    for (int i = 0; i < row_count; i++) {
        int any_gpu = rows[i].any_gpu && gpu != SYSTEM, any_function = !strcmp(rows[i].function, "*");
        if ((!any_gpu && (rows[i].any_gpu || rows[i].gpu != gpu)) || (any_function ? is_key : strcmp(rows[i].function, function) != 0)) continue;
        int score = (any_gpu ? 0 : 2) + (any_function ? 0 : 1);
        if (score >= best_score) { best = &rows[i]; best_score = score; }
    }
    return best;
}

static const char *text_of(int gpu, const char *key) {
    Row *row = find(gpu, key);
    return row ? row->value : "";
}

// ---- fate: what becomes of a call ----

static void hang(const char *mode) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    never_return(mode);
}

static CUresult fate(int gpu, const char *function) {
    called(function);
    if (gpu != SYSTEM && !strcmp(text_of(gpu, "cuda.crash"), function)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    Row *row = find(gpu, function);
    if (row && row->hang[0]) hang(row->hang);
    return row ? row->code : SUCCESS;
}

// The fate of a call that needs a current context.
static CUresult here(const char *function) {
    if (!initialised) return NOT_INITIALIZED;
    return current ? fate(current->gpu, function) : INVALID_CONTEXT;
}
#define OR_RETURN(EXPRESSION) do { CUresult result_ = (EXPRESSION); if (result_ != SUCCESS) return result_; } while (0)

// ---- devices ----

// As the driver does: by UUID or number in the order given, ending at the first that is not there.
static void choose_visible(void) {
    int count = atoi(text_of(SYSTEM, "nvmlDeviceGetCount"));
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!wanted) {
        for (int gpu = 0; gpu < count && gpu < MOST_GPUS; gpu++) visible[visible_count++] = gpu;
        return;
    }
    char *words = strdup(wanted), *state = NULL;
    for (char *word = strtok_r(words, ",", &state); word && visible_count < MOST_GPUS; word = strtok_r(NULL, ",", &state)) {
        int found = -1;
        for (int gpu = 0; gpu < count; gpu++) {
            if (!strncmp(word, "GPU-", 4) ? !strncmp(word, text_of(gpu, "nvmlDeviceGetUUID"), strlen(word)) : atoi(word) == gpu) found = gpu;
        }
        if (found < 0) break;
        visible[visible_count++] = found;
    }
    free(words);
}

CUresult cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    read_table();
    OR_RETURN(fate(SYSTEM, __func__));
    choose_visible();
    for (int i = 0; i < visible_count; i++) OR_RETURN(fate(visible[i], __func__));
    if (!visible_count) return NO_DEVICE;
    initialised = 1;
    return SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = atoi(text_of(SYSTEM, "nvmlSystemGetCudaDriverVersion"));
    return fate(SYSTEM, __func__);
}

CUresult cuGetErrorName(CUresult code, const char **name) {
    static _Thread_local char words[40];
    snprintf(words, sizeof words, "CUDA_ERROR_%d", code);
    *name = words;
    return SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *bus_id) {
    unsigned wanted[3], had[3];
    if (!initialised) return NOT_INITIALIZED;
    if (sscanf(bus_id, "%x:%x:%x", wanted, wanted + 1, wanted + 2) != 3) return INVALID_VALUE;
    for (int i = 0; i < visible_count; i++) {
        if (sscanf(text_of(visible[i], "nvmlDeviceGetPciInfo"), "%x:%x:%x", had, had + 1, had + 2) != 3) continue;
        if (memcmp(wanted, had, sizeof had)) continue;
        *device = i;
        return fate(visible[i], __func__);
    }
    return INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    if (!initialised) return NOT_INITIALIZED;
    if (device < 0 || device >= visible_count) return INVALID_DEVICE;
    const char *capability = text_of(visible[device], "cuda.capability");
    switch (attribute) {
    case 16: *value = 132; break;                                     // multiprocessors
    case 38: *value = 1 << 18; break;                                 // bytes of the L2 cache: small, so that a test's memory is
    case 75: *value = *capability ? atoi(capability) : 9; break;      // major compute capability
    default: return INVALID_VALUE;
    }
    return fate(visible[device], __func__);
}

CUresult cuDevicePrimaryCtxRetain(Context **context, CUdevice device) {
    if (!initialised) return NOT_INITIALIZED;
    if (device < 0 || device >= visible_count) return INVALID_DEVICE;
    int gpu = visible[device];
    OR_RETURN(fate(gpu, __func__));
    pthread_mutex_lock(&lock);
    retained[gpu]++;
    contexts[gpu].gpu = gpu;
    pthread_mutex_unlock(&lock);
    *context = &contexts[gpu];
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (device < 0 || device >= visible_count) return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    retained[visible[device]]--;
    pthread_mutex_unlock(&lock);
    return fate(visible[device], __func__);
}

CUresult cuCtxSetCurrent(Context *context) {
    current = context;
    return initialised ? SUCCESS : NOT_INITIALIZED;
}

// ---- memory ----

static CUresult allocate(char **start, size_t size, int on_device) {
    Block *block = malloc(sizeof *block);
    if (!size || posix_memalign((void **)start, 4096, size)) return size ? OUT_OF_MEMORY : INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *block = (Block){*start, size, current->gpu, on_device, blocks};
    blocks = block;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static CUresult release(const void *start, int on_device) {
    CUresult result = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (Block **link = &blocks; *link; link = &(*link)->next) {
        Block *block = *link;
        if (block->start != start || block->on_device != on_device) continue;
        *link = block->next;
        free(block->start);
        free(block);
        result = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

// Whether a range lies in pinned host memory (of any context) or in memory of a device.
static int within_of(int gpu, const char *start, size_t size, int on_device) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (Block *block = blocks; block; block = block->next) {
        if (block->on_device != on_device || (on_device && block->gpu != gpu)) continue;
        if (start >= block->start && start + size <= block->start + block->size) found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static int within(const char *start, size_t size, int on_device) { return within_of(current->gpu, start, size, on_device); }

CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
    OR_RETURN(here(__func__));
    return flags & ~7u ? INVALID_VALUE : allocate((char **)pointer, size, 0);
}
CUresult cuMemFreeHost(void *pointer) {
    OR_RETURN(here(__func__));
    return release(pointer, 0);
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned flags) {
    OR_RETURN(here(__func__));
    if (flags || !within(host, 1, 0)) return INVALID_VALUE;
    *pointer = (CUdeviceptr)(uintptr_t)host;
    return SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    OR_RETURN(here(__func__));
    char *start = NULL;
    OR_RETURN(allocate(&start, size, 1));
    *pointer = (CUdeviceptr)(uintptr_t)start;
    return SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
    OR_RETURN(here(__func__));
    return release((void *)(uintptr_t)pointer, 1);
}

// ---- streams, events: the virtual clock ----

// Whether a GPU's link is still coming up; by the real clock, as all that a program can do about it is to wait or to copy.
static int asleep(int gpu) {
    static double first[MOST_GPUS];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + now.tv_nsec / 1e9;
    if (!first[gpu]) first[gpu] = seconds;
    return seconds - first[gpu] < atof(text_of(gpu, "cuda.asleep"));
}

// Bytes a second on the way `way` (h2d, d2h) by copy engine or kernel.
static double rate(int gpu, const char *way, int by_kernel) {
    static const double healthy[] = {55.2e9, 3.1e9, 6.2e9, 12.4e9, 25.9e9, 55.2e9, 105e9};
    char key[64];
    int others = 0;
    for (int i = 0; i < MOST_GPUS; i++) others += i != gpu && retained[i] > 0;
    snprintf(key, sizeof key, "cuda.concurrent_%s", way);
    if (others && *text_of(gpu, key)) return atof(text_of(gpu, key));
    snprintf(key, sizeof key, "cuda.kernel_%s", way);
    if (by_kernel && *text_of(gpu, key)) return atof(text_of(gpu, key));
    snprintf(key, sizeof key, "cuda.%s", way);
    int generation = atoi(text_of(gpu, "nvmlDeviceGetMaxPcieLinkGeneration"));
    double engine = *text_of(gpu, key) ? atof(text_of(gpu, key)) : healthy[generation >= 0 && generation <= 6 ? generation : 0];
    return (by_kernel ? engine * 0.9 : engine) / (asleep(gpu) ? 8 : 1);
}

static double as_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// A binary16 that is a whole number of at most 2048.
static float of_half(uint16_t half) {
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : 0;
    return (float)(half >> 15 ? -value : value);
}

static void flip(int gpu, const char *kernel, void *result, size_t size) {
    if (!strcmp(text_of(gpu, "cuda.wrong"), kernel)) ((char *)result)[size / 3 & ~(size_t)7] ^= 0x10;
}

static void fp64(char *ends, const double *starts, double k, uint64_t steps, size_t size) {
    double x[8];
    for (int chain = 0; chain < 8; chain++) {
        x[chain] = starts[chain];
        for (uint64_t step = 0; step < steps; step++) x[chain] = fma(x[chain], x[chain], -k);
    }
    for (size_t at = 0; at < size; at += sizeof x) memcpy(ends + at, x, sizeof x);
}

static void tensor(char *sums, const uint16_t *left, const uint16_t *right, uint64_t steps, size_t size) {
    float tiles[1024] = {0};
    for (int tile = 0; tile < 4; tile++)
        for (int row = 0; row < 16; row++)
            for (int column = 0; column < 16; column++) {
                double sum = 0;
                for (int i = 0; i < 16; i++) sum += of_half(left[row * 16 + i]) * of_half(right[tile * 256 + i * 16 + column]);
                tiles[tile * 256 + row * 16 + column] = (float)(sum * (double)steps);
            }
    for (size_t at = 0; at < size; at += sizeof tiles) memcpy(sums + at, tiles, sizeof tiles);
}

// The same work again and again is done once: that is what time it is said to take that counts.
static void work(Stream *stream) {
    Work *w = &stream->work;
    uint64_t *given = w->arguments;
    double *a = (double *)(uintptr_t)given[0], *b = (double *)(uintptr_t)given[1], *c = (double *)(uintptr_t)given[2];
    switch (w->kind) {
    case COPY:
        memcpy(w->to, w->from, w->size);
        int spoilt = w->peer ? atoi(text_of(stream->gpu, "cuda.peer_corrupt")) : atoi(text_of(stream->gpu, "cuda.corrupt")) && within(w->to, 1, 1);
        if (spoilt) w->to[w->size / 3] ^= 0x10;
        break;
    case FILL:
        for (uint64_t i = 0; i < given[2]; i++) { a[i] = (double)(i % 65521); b[i] = (double)(i % 8191); }
        break;
    case TRIAD:
        for (uint64_t i = 0; i < 2 * given[4]; i++) a[i] = b[i] + as_double(given[3]) * c[i];
        flip(stream->gpu, "triad", a, 16 * given[4]);
        break;
    case COUNT:
        for (uint64_t i = 0; i < given[2]; i++) *(uint64_t *)(uintptr_t)given[3] += a[i] != (double)(i % 65521) + as_double(given[1]) * (double)(i % 8191);
        break;
    case FP64:
        fp64((char *)a, b, as_double(given[2]), given[3], w->size);
        flip(stream->gpu, "fp64", a, w->size);
        break;
    case TENSOR:
        tensor((char *)a, (uint16_t *)b, (uint16_t *)c, given[3], w->size);
        flip(stream->gpu, "tensor", a, w->size);
        break;
    }
    w->kind = NOTHING;
}

static CUresult enqueue(Stream *stream, Work next, double seconds) {
    if (!stream) return INVALID_VALUE;
    if (memcmp(&stream->work, &next, sizeof next)) work(stream);
    stream->work = next;
    stream->now += seconds;
    return SUCCESS;
}

static CUresult copy(Stream *stream, char *to, char *from, size_t size, int to_device, int by_kernel) {
    Work next;
    if (!stream || !size || !within(to, size, to_device) || !within(from, size, !to_device)) return INVALID_VALUE;
    memset(&next, 0, sizeof next);
    next.kind = COPY, next.to = to, next.from = from, next.size = size;
    return enqueue(stream, next, (double)size / rate(stream->gpu, to_device ? "h2d" : "d2h", by_kernel));
}

CUresult cuStreamCreate(Stream **stream, unsigned flags) {
    OR_RETURN(here(__func__));
    if (flags > 1) return INVALID_VALUE;
    *stream = calloc(1, sizeof **stream);
    (*stream)->gpu = current->gpu;
    return SUCCESS;
}
CUresult cuStreamSynchronize(Stream *stream) {
    OR_RETURN(here(__func__));
    if (!stream) return INVALID_HANDLE;
    work(stream);
    return SUCCESS;
}
CUresult cuStreamDestroy_v2(Stream *stream) {
    OR_RETURN(here(__func__));
    free(stream);
    return SUCCESS;
}

CUresult cuEventCreate(Event **event, unsigned flags) {
    OR_RETURN(here(__func__));
    if (flags) return INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    return SUCCESS;
}
CUresult cuEventRecord(Event *event, Stream *stream) {
    OR_RETURN(here(__func__));
    if (!event || !stream) return INVALID_HANDLE;
    *event = (Event){stream->now, 1};
    return SUCCESS;
}
CUresult cuEventSynchronize(Event *event) {
    OR_RETURN(here(__func__));
    usleep(4000);
    return event ? SUCCESS : INVALID_HANDLE;
}
CUresult cuEventElapsedTime(float *milliseconds, Event *start, Event *end) {
    OR_RETURN(here(__func__));
    if (!start || !end || !start->recorded || !end->recorded) return INVALID_HANDLE;
    *milliseconds = (float)((end->time - start->time) * 1e3);
    return SUCCESS;
}
CUresult cuEventDestroy_v2(Event *event) {
    OR_RETURN(here(__func__));
    free(event);
    return SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, Stream *stream) {
    OR_RETURN(here(__func__));
    return copy(stream, (char *)(uintptr_t)to, (char *)from, size, 1, 0);
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, Stream *stream) {
    OR_RETURN(here(__func__));
    return copy(stream, to, (char *)(uintptr_t)from, size, 0, 0);
}

// ---- peers ----

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    if (!initialised) return NOT_INITIALIZED;
    if (device < 0 || device >= visible_count || peer < 0 || peer >= visible_count) return INVALID_DEVICE;
    *can = device != peer && strcmp(text_of(visible[device], "cuda.peer_access"), "0");
    return fate(visible[device], __func__);
}

CUresult cuCtxEnablePeerAccess(Context *peer, unsigned flags) {
    static int enabled[MOST_GPUS][MOST_GPUS];
    OR_RETURN(here(__func__));
    if (flags || !peer) return INVALID_VALUE;
    if (peer == current || !strcmp(text_of(current->gpu, "cuda.peer_access"), "0")) return PEER_ACCESS_UNSUPPORTED;
    return enabled[current->gpu][peer->gpu]++ ? PEER_ACCESS_ENABLED : SUCCESS;
}

// What NVML's stand-in says of a link: by its own row, else by that of all.
static const char *of_link(int gpu, const char *function, int link) {
    char key[96];
    snprintf(key, sizeof key, "%s.%d", function, link);
    Row *row = find(gpu, key);
    return row && !strcmp(row->function, key) ? row->value : text_of(gpu, function);
}

// Bytes a second from one GPU to another: by what is configured, by the NVLinks that are up, by PCIe.
static double peer_rate(int from, int to) {
    char key[64];
    snprintf(key, sizeof key, "cuda.peer.%d", to);
    if (*text_of(from, key)) return atof(text_of(from, key));
    if (*text_of(from, "cuda.peer")) return atof(text_of(from, "cuda.peer"));
    int links = 0, switched = atoi(text_of(from, "nvmlDeviceGetNvLinkRemoteDeviceType")) == 2;
    for (int link = 0; link < atoi(text_of(from, "nvlink.links")); link++) {
        if (!atoi(of_link(from, "nvmlDeviceGetNvLinkState", link))) continue;
        links += switched || !strcmp(of_link(from, "nvmlDeviceGetNvLinkRemotePciInfo", link), text_of(to, "nvmlDeviceGetPciInfo"));
    }
    return links ? links * atof(text_of(from, "field.164")) * 0.82e6 : rate(from, "d2h", 0) * 0.9;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, Context *to_context, CUdeviceptr from, Context *from_context, size_t size, Stream *stream) {
    Work next;
    OR_RETURN(here(__func__));
    char *target = (char *)(uintptr_t)to, *source = (char *)(uintptr_t)from;
    if (!stream || !to_context || !from_context || !within_of(to_context->gpu, target, size, 1) || !within_of(from_context->gpu, source, size, 1)) return INVALID_VALUE;
    memset(&next, 0, sizeof next);
    next.kind = COPY, next.peer = 1, next.to = target, next.from = source, next.size = size;
    return enqueue(stream, next, (double)size / peer_rate(from_context->gpu, to_context->gpu));
}

// ---- our kernels ----

static const Kernel kernels[] = {
    {"autopilot_copy", COPY, 3}, {"autopilot_fill", FILL, 3}, {"autopilot_triad", TRIAD, 5}, {"autopilot_count", COUNT, 4}, {"autopilot_fp64", FP64, 4},
    {"autopilot_tensor", TENSOR, 4},
};

CUresult cuModuleLoadData(Module **module, const char *image) {
    OR_RETURN(here(__func__));
    if (strncmp(image, ".version ", 9)) return INVALID_PTX;
    *module = malloc(sizeof **module);
    (*module)->text = strdup(image);
    return SUCCESS;
}
CUresult cuModuleUnload(Module *module) {
    OR_RETURN(here(__func__));
    free(module->text);
    free(module);
    return SUCCESS;
}
CUresult cuModuleGetFunction(const Kernel **function, Module *module, const char *name) {
    char entry[128];
    OR_RETURN(here(__func__));
    snprintf(entry, sizeof entry, ".entry %s(", name);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(name, kernels[i].name) || !strstr(module->text, entry)) continue;
        *function = &kernels[i];
        return SUCCESS;
    }
    return NOT_FOUND;
}

static double speed(int gpu, const char *key, double healthy) { return *text_of(gpu, key) ? atof(text_of(gpu, key)) : healthy; }

CUresult cuLaunchKernel(const Kernel *kernel, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x, unsigned threads_y, unsigned threads_z,
                        unsigned shared, Stream *stream, void **parameters, void **extra) {
    Work next;
    OR_RETURN(here(__func__));
    if (!kernel || !stream || !blocks_x || blocks_y != 1 || blocks_z != 1 || threads_x < 1 || threads_x > 1024 || threads_y != 1 || threads_z != 1 || shared || extra)
        return INVALID_VALUE;
    memset(&next, 0, sizeof next);
    next.kind = kernel->kind;
    for (int i = 0; i < kernel->arguments; i++) next.arguments[i] = *(uint64_t *)parameters[i];
    uint64_t *given = next.arguments, threads = (uint64_t)blocks_x * threads_x;
    char *first = (char *)(uintptr_t)given[0], *second = (char *)(uintptr_t)given[1], *third = (char *)(uintptr_t)given[2];
    if (given[0] % 16) return MISALIGNED;
    double seconds = 1e-6;
    switch (kernel->kind) {
    case COPY:
        if (given[1] % 16) return MISALIGNED;
        return copy(stream, first, second, given[2] * 16, within(first, 1, 1), 1);
    case FILL:
        if (!within(first, given[2] * 8, 1) || !within(second, given[2] * 8, 1)) return INVALID_VALUE;
        break;
    case TRIAD:
        if (!within(first, given[4] * 16, 1) || !within(second, given[4] * 16, 1) || !within(third, given[4] * 16, 1)) return INVALID_VALUE;
        seconds = 48.0 * (double)given[4] / speed(stream->gpu, "cuda.triad", 3.0e12);
        break;
    case COUNT:
        if (!within(first, given[2] * 8, 1) || !within((char *)(uintptr_t)given[3], 8, 1)) return INVALID_VALUE;
        break;
    case FP64:
        next.size = threads * 64;
        if (!within(first, next.size, 1) || !within(second, 64, 1)) return INVALID_VALUE;
        seconds = 16.0 * (double)threads * (double)given[3] / speed(stream->gpu, "cuda.fp64", 30e12);
        break;
    case TENSOR:
        next.size = threads / 32 * 4096;
        if (threads_x % 32 || !within(first, next.size, 1) || !within(second, 512, 1) || !within(third, 2048, 1)) return INVALID_VALUE;
        seconds = 32768.0 * (double)(threads / 32) * (double)given[3] / speed(stream->gpu, "cuda.tensor", 500e12);
        break;
    }
    return enqueue(stream, next, seconds);
}
