// Copyright: Contributors to the autopilot.gpu collection
// GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// A stand-in for the driver's libnvidia-ml.so.1. It answers from $SANDBOX_NODE/node.table, which tests/sandbox/node.py
// renders from a scenario, one rule a line:
//
//     <gpu index|*|system> <function|*> <return code> [values...]      "quoted strings", numbers, a+b grows by b per call
//     <gpu index|*|system> <function|*> <return code>x<n> [values...]     holds for the first n calls only
//     <gpu index|*|system> <function|*> hang <ignore_term|stop|uninterruptible>
//
// An exact GPU beats `*`, then an exact function beats `*`, then the later line wins. Functions stand in the table without
// their version suffix (nvmlDeviceGetCount_v2 is nvmlDeviceGetCount; nvmlInit_v2 and nvmlInitWithFlags are nvmlInit); what
// takes a selector may be told apart by it (nvmlDeviceGetViolationStatus.1, nvmlDeviceGetTotalEccErrors.1.0, field.230).
// What changes a GPU answers 0 and does nothing but to leave its name in $SANDBOX_NODE/setters.log.
// A function that has no rule answers NVML_ERROR_NOT_SUPPORTED. A function that an old driver lacks is not a rule at all:
// node.py links a variant of this library that does not export it, so that the binding meets a truly missing symbol.
// Signatures and layouts: NVML API reference; the binding's own declarations are compared in tests/component/test_nvml_binding.py.

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "hang.h"

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };
enum { ANY = -1, SYSTEM = -2, LONGEST = 160, MOST_VALUES = 512 };

typedef int nvmlReturn_t;
typedef struct { int index; } *nvmlDevice_t;
typedef unsigned int uint;
typedef unsigned long long ulong64;

typedef struct Rule {
    int gpu;
    char function[LONGEST];
    uint hash;
    char hang[32];
    int code;
    int count;
    char **values;
    long calls, limit;
    struct Rule *earlier;
} Rule;

static Rule *last_rule;
static int initialised;

// ---- the table ----

// The next word of a line, a "quoted string" counting as one; NULL at its end. Writes into the line.
static char *next_word(char **line) {
    char *start = *line + strspn(*line, " \t\n");
    if (!*start || *start == '#') return NULL;
    char end = ' ';
    if (*start == '"') { end = '"'; start++; }
    char *stop = end == '"' ? strchr(start, '"') : start + strcspn(start, " \t\n");
    if (!stop) stop = start + strlen(start);
    *line = *stop ? stop + 1 : stop;
    *stop = 0;
    return start;
}

static uint hash_of(const char *text) {
    uint hash = 5381;
    while (*text) hash = hash * 33 + (unsigned char)*text++;
    return hash;
}

static void read_table(void) {
    if (last_rule) return;
    char path[4096], *line = NULL;
    size_t size = 0;
    const char *node = getenv("SANDBOX_NODE");
    snprintf(path, sizeof path, "%s/node.table", node ? node : ".");
    FILE *table = fopen(path, "re");
    if (!table) return;
    while (getline(&line, &size, table) > 0) {
        char *rest = line, *gpu = next_word(&rest), *function = next_word(&rest), *code = next_word(&rest), *word;
        if (!gpu || !function || !code) continue;
        Rule *rule = calloc(1, sizeof *rule);
        rule->gpu = !strcmp(gpu, "*") ? ANY : !strcmp(gpu, "system") ? SYSTEM : atoi(gpu);
        snprintf(rule->function, sizeof rule->function, "%s", function);
        rule->hash = hash_of(rule->function);
        char *values[MOST_VALUES];
        if (!strcmp(code, "hang")) {
            word = next_word(&rest);
            snprintf(rule->hang, sizeof rule->hang, "%s", word ? word : "ignore_term");
        } else {
            rule->code = (int)strtol(code, &word, 10);
            rule->limit = *word == 'x' ? atol(word + 1) : 0;
        }
        while (rule->count < MOST_VALUES && (word = next_word(&rest))) values[rule->count++] = strdup(word);
        rule->values = memcpy(calloc((size_t)rule->count + 1, sizeof *values), values, (size_t)rule->count * sizeof *values);
        rule->earlier = last_rule;
        last_rule = rule;
    }
    free(line);
    fclose(table);
}

static Rule *find(int gpu, const char *function) {
    Rule *best = NULL;
    int best_score = -1;
    uint hash = hash_of(function), any = hash_of("*");
    for (Rule *rule = last_rule; rule; rule = rule->earlier) {
        if (rule->hash != hash && rule->hash != any) continue;
        int any_gpu = rule->gpu == ANY && gpu != SYSTEM, any_function = !strcmp(rule->function, "*");
        if (rule->limit && rule->calls >= rule->limit) continue;
        if ((rule->gpu != gpu && !any_gpu) || (strcmp(rule->function, function) && !any_function)) continue;
        int score = (any_gpu ? 0 : 2) + (any_function ? 0 : 1);
        if (score > best_score) { best = rule; best_score = score; }
    }
    return best;
}

// ---- hanging ----

static void hang(const char *mode) {
    signal(SIGTERM, SIG_IGN);
    never_return(mode);
}

// ---- answering ----

// Whether the rule found under a narrower name is to be preferred: not when the wider one is about this very GPU and it is not.
static int narrower(const Rule *narrow, const Rule *wide) {
    return narrow && strcmp(narrow->function, "*") && !(wide && narrow->gpu == ANY && wide->gpu != ANY);
}

// The rule for a function of a GPU or NULL. The selectors (one or two, -1 for none) try the narrower name too.
static Rule *answer_of(int gpu, const char *function, int first, int second) {
    char name[LONGEST];
    called(function);
    Rule *rule = find(gpu, function), *narrow;
    if (first >= 0) {
        snprintf(name, sizeof name, "%s.%d", function, first);
        if (narrower(narrow = find(gpu, name), rule)) rule = narrow;
    }
    if (second >= 0) {
        snprintf(name, sizeof name, "%s.%d.%d", function, first, second);
        if (narrower(narrow = find(gpu, name), rule)) rule = narrow;
    }
    if (rule && rule->hang[0]) hang(rule->hang);
    if (rule) rule->calls++;
    return rule;
}

static long long number(const Rule *rule, int position) {
    if (position >= rule->count) return 0;
    char *end;
    long long base = strtoll(rule->values[position], &end, 0);
    return *end == '+' ? base + (rule->calls - 1) * strtoll(end + 1, NULL, 0) : base;
}

static const char *text(const Rule *rule, int position) { return position < rule->count ? rule->values[position] : ""; }

// The return code of a rule for a function that has values to give.
static nvmlReturn_t code_of(const Rule *rule) {
    if (!initialised) return UNINITIALIZED;
    return rule ? rule->code : NOT_SUPPORTED;
}

// `count` unsigned ints of a rule into the pointers that follow.
static nvmlReturn_t uints(nvmlDevice_t device, const char *function, int first, int second, int count, ...) {
    Rule *rule = initialised ? answer_of(device->index, function, first, second) : NULL;
    nvmlReturn_t code = code_of(rule);
    va_list targets;
    va_start(targets, count);
    for (int i = 0; i < count && code == SUCCESS; i++) *va_arg(targets, uint *) = (uint)number(rule, i);
    va_end(targets);
    return code;
}

static nvmlReturn_t string_of(int gpu, const char *function, int selector, char *target, uint size) {
    Rule *rule = initialised ? answer_of(gpu, function, selector, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    if (strlen(text(rule, 0)) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(target, text(rule, 0));
    return SUCCESS;
}

static nvmlReturn_t string(int gpu, const char *function, char *target, uint size) { return string_of(gpu, function, -1, target, size); }

static nvmlReturn_t long_number(nvmlDevice_t device, const char *function, int first, int second, ulong64 *value) {
    Rule *rule = initialised ? answer_of(device->index, function, first, second) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code == SUCCESS) *value = (ulong64)number(rule, 0);
    return code;
}

#define ONE(NAME) nvmlReturn_t NAME(nvmlDevice_t device, uint *a) { return uints(device, __func__, -1, -1, 1, a); }
#define TWO(NAME) nvmlReturn_t NAME(nvmlDevice_t device, uint *a, uint *b) { return uints(device, __func__, -1, -1, 2, a, b); }
#define ONE_OF(NAME) nvmlReturn_t NAME(nvmlDevice_t device, uint which, uint *a) { return uints(device, __func__, (int)which, -1, 1, a); }
#define WORDS(NAME) nvmlReturn_t NAME(nvmlDevice_t device, char *words, uint size) { return string(device->index, __func__, words, size); }

// ---- system ----

nvmlReturn_t nvmlInitWithFlags(uint flags) {
    (void)flags;
    read_table();
    Rule *rule = answer_of(SYSTEM, "nvmlInit", -1, -1);
    nvmlReturn_t code = rule ? rule->code : SUCCESS;
    if (code == SUCCESS) initialised++;
    return code;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    Rule *rule = answer_of(SYSTEM, "nvmlShutdown", -1, -1);
    initialised--;
    return rule ? rule->code : SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    static char words[32];
    snprintf(words, sizeof words, "NVML error %d", code);
    return words;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, uint size) { return string(SYSTEM, __func__, version, size); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, uint size) { return string(SYSTEM, __func__, version, size); }

static nvmlReturn_t system_number(const char *function, uint *value) {
    Rule *rule = initialised ? answer_of(SYSTEM, function, -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code == SUCCESS) *value = (uint)number(rule, 0);
    return code;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(uint *version) { return system_number("nvmlSystemGetCudaDriverVersion", version); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(uint *version) { return system_number("nvmlSystemGetCudaDriverVersion", version); }
nvmlReturn_t nvmlDeviceGetCount_v2(uint *count) { return system_number("nvmlDeviceGetCount", count); }

// ---- devices ----

static nvmlReturn_t handle_of(int index, const char *function, nvmlDevice_t *device) {
    Rule *rule = answer_of(index, function, -1, -1);
    if (rule && rule->code != SUCCESS) return rule->code;
    *device = calloc(1, sizeof **device);
    (*device)->index = index;
    return SUCCESS;
}

static int device_count(void) {
    Rule *rule = find(SYSTEM, "nvmlDeviceGetCount");
    return rule ? (int)number(rule, 0) : 0;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint index, nvmlDevice_t *device) {
    if (!initialised) return UNINITIALIZED;
    if ((int)index >= device_count()) return INVALID_ARGUMENT;
    return handle_of((int)index, "nvmlDeviceGetHandleByIndex", device);
}

static nvmlReturn_t handle_by(const char *function, const char *attribute, const char *wanted, nvmlDevice_t *device) {
    if (!initialised) return UNINITIALIZED;
    for (int index = 0; index < device_count(); index++) {
        Rule *rule = find(index, attribute);
        if (rule && !strcasecmp(text(rule, 0), wanted)) return handle_of(index, function, device);
    }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return handle_by("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", uuid, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    char full[32];
    uint domain, bus, slot;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2) return INVALID_ARGUMENT;
    }
    snprintf(full, sizeof full, "%08X:%02X:%02X.0", domain, bus, slot);
    return handle_by("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetPciInfo", full, device);
}

WORDS(nvmlDeviceGetUUID)
WORDS(nvmlDeviceGetName)
WORDS(nvmlDeviceGetSerial)
WORDS(nvmlDeviceGetVbiosVersion)
WORDS(nvmlDeviceGetInforomImageVersion)
WORDS(nvmlDeviceGetBoardPartNumber)
// selector: InfoROM object (0 OEM, 1 ECC, 2 power)
nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, uint object, char *version, uint size) {
    return string_of(device->index, __func__, (int)object, version, size);
}
// The caller's buffer has 64 characters (NVML_GSP_FIRMWARE_VERSION_BUF_SIZE).
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version) { return string(device->index, __func__, version, 64); }
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, uint *index) {
    if (!initialised) return UNINITIALIZED;
    Rule *rule = answer_of(device->index, __func__, -1, -1);
    *index = (uint)device->index;
    return rule ? rule->code : SUCCESS;
}

typedef struct { char busIdLegacy[16]; uint domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } PciInfo;
_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");

// values: bus id as NVML spells it, PCI device and vendor id (0x233010de)
static nvmlReturn_t pci_info(nvmlDevice_t device, const char *function, int selector, PciInfo *info) {
    Rule *rule = initialised ? answer_of(device->index, function, selector, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    memset(info, 0, sizeof *info);
    snprintf(info->busId, sizeof info->busId, "%s", text(rule, 0));
    if (sscanf(info->busId, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3) return UNKNOWN;
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus & 0xff, info->device & 0xff);
    info->pciDeviceId = (uint)number(rule, 1);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, PciInfo *info) { return pci_info(device, "nvmlDeviceGetPciInfo", -1, info); }

// ---- modes, memory errors ----

TWO(nvmlDeviceGetEccMode)
TWO(nvmlDeviceGetMigMode)
ONE(nvmlDeviceGetPersistenceMode)
ONE(nvmlDeviceGetComputeMode)
ONE(nvmlDeviceGetPerformanceState)
ONE(nvmlDeviceGetBrand)
ONE(nvmlDeviceGetNumGpuCores)
TWO(nvmlDeviceGetGspFirmwareMode)

// values: correctable, uncorrectable, pending, failure
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, uint *correctable, uint *uncorrectable, uint *pending, uint *failure) {
    return uints(device, __func__, -1, -1, 4, correctable, uncorrectable, pending, failure);
}

typedef struct { uint corrActive, corrInactive, uncActive, uncInactive, bPending, bFailureOccurred; } RemappedRowsInfo;
_Static_assert(sizeof(RemappedRowsInfo) == 24, "nvmlRemappedRowsInfo_v2_t");

// In the table as nvmlDeviceGetRemappedRowsInfo; values: the members in order
nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, RemappedRowsInfo *info) {
    return uints(device, "nvmlDeviceGetRemappedRowsInfo", -1, -1, 6, &info->corrActive, &info->corrInactive, &info->uncActive, &info->uncInactive, &info->bPending,
                 &info->bFailureOccurred);
}

// values: banks with max, high, partial, low, none of their spare rows left
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, uint banks[5]) {
    return uints(device, __func__, -1, -1, 5, banks, banks + 1, banks + 2, banks + 3, banks + 4);
}

// values: address and time stamp of each page; selector: cause (0 several single bit errors, 1 double bit error)
static nvmlReturn_t retired_pages(nvmlDevice_t device, uint cause, uint *count, ulong64 *addresses, ulong64 *times) {
    Rule *rule = initialised ? answer_of(device->index, "nvmlDeviceGetRetiredPages", (int)cause, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    uint room = *count, pages = (uint)rule->count / 2;
    *count = pages;
    if (room < pages) return INSUFFICIENT_SIZE;
    for (uint i = 0; i < pages && addresses; i++) {
        addresses[i] = (ulong64)number(rule, (int)(2 * i));
        if (times) times[i] = (ulong64)number(rule, (int)(2 * i + 1));
    }
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, uint cause, uint *count, ulong64 *addresses) {
    return retired_pages(device, cause, count, addresses, NULL);
}
nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, uint cause, uint *count, ulong64 *addresses, ulong64 *times) {
    return retired_pages(device, cause, count, addresses, times);
}
ONE(nvmlDeviceGetRetiredPagesPendingStatus)

// selectors: error type (0 corrected, 1 uncorrected), counter (0 volatile, 1 aggregate)
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, uint type, uint counter, ulong64 *errors) {
    return long_number(device, __func__, (int)type, (int)counter, errors);
}

// selectors: as above and the location (0 L1, 1 L2, 2 DRAM, 3 register file, 4 texture memory, 5 texture shared memory, 6 CBU, 7 SRAM)
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, uint type, uint counter, uint location, ulong64 *errors) {
    char narrow[LONGEST];
    snprintf(narrow, sizeof narrow, "%s.%u", __func__, type);
    Rule *wide = find(device->index, __func__), *rule = answer_of(device->index, narrow, (int)counter, (int)location);
    if (!narrower(rule, wide)) rule = answer_of(device->index, __func__, -1, -1);
    nvmlReturn_t code = code_of(rule);
    if (code == SUCCESS) *errors = (ulong64)number(rule, 0);
    return code;
}

typedef struct { uint version; ulong64 counters[11]; uint bThresholdExceeded; } SramStatus;
_Static_assert(sizeof(SramStatus) == 0x68, "nvmlEccSramErrorStatus_v1_t");

// values: threshold exceeded, volatile uncorrectable (parity), volatile uncorrectable (SEC-DED), volatile corrected, the same three aggregate
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, SramStatus *status) {
    Rule *rule = initialised ? answer_of(device->index, __func__, -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    status->bThresholdExceeded = (uint)number(rule, 0);
    for (int i = 0; i < 6; i++) status->counters[(i + 3) % 6] = (ulong64)number(rule, i + 1);
    return SUCCESS;
}

typedef struct { uint version, bChannelRepairPending, bTpcRepairPending; } RepairStatus;
_Static_assert(sizeof(RepairStatus) == 0xC, "nvmlRepairStatus_v1_t");

nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, RepairStatus *status) {
    return uints(device, __func__, -1, -1, 2, &status->bChannelRepairPending, &status->bTpcRepairPending);
}

// ---- field values ----

typedef struct { uint fieldId, scopeId; long long timestamp, latencyUsec; uint valueType, nvmlReturn; union { double d; uint u; ulong64 ull; } value; } FieldValue;
_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");

// A link beyond those of the model is an invalid argument; `nvlink.links` says how many it has.
static nvmlReturn_t bounded(nvmlDevice_t device, uint link) {
    if (!initialised) return UNINITIALIZED;
    Rule *rule = find(device->index, "nvlink.links");
    return rule && rule->code == SUCCESS && link >= (uint)number(rule, 0) ? INVALID_ARGUMENT : SUCCESS;
}
// Whether a field's scope is a link: NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY to GET_VERSION, and the counters of NVLink 5.
static int of_link(uint field) { return (field >= 161 && field <= 166) || (field >= 201 && field <= 222); }

// one rule a field: field.<id> or field.<id>.<scope>, one value
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, FieldValue *values) {
    if (!initialised) return UNINITIALIZED;
    Rule *whole = answer_of(device->index, __func__, -1, -1);
    if (whole && whole->code != SUCCESS) return whole->code;
    for (int i = 0; i < count; i++) {
        char name[LONGEST];
        snprintf(name, sizeof name, "field.%u", values[i].fieldId);
        Rule *rule = answer_of(device->index, name, (int)values[i].scopeId, -1);
        if (of_link(values[i].fieldId) && bounded(device, values[i].scopeId)) {
            values[i].nvmlReturn = INVALID_ARGUMENT;
            continue;
        }
        values[i].nvmlReturn = (uint)code_of(rule);
        values[i].valueType = 3;
        values[i].value.ull = rule && rule->code == SUCCESS ? (ulong64)number(rule, 0) : 0;
    }
    return SUCCESS;
}

// ---- clocks and power ----

static nvmlReturn_t reasons(nvmlDevice_t device, const char *function, ulong64 *mask) {
    Rule *rule = initialised ? answer_of(device->index, function, -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code == SUCCESS) *mask = (ulong64)number(rule, 0);
    return code;
}
// The second name of each pair is the only one before driver 535; both read the same rule.
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, ulong64 *mask) { return reasons(device, "nvmlDeviceGetCurrentClocksEventReasons", mask); }
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, ulong64 *mask) { return reasons(device, "nvmlDeviceGetCurrentClocksEventReasons", mask); }
nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, ulong64 *mask) { return reasons(device, "nvmlDeviceGetSupportedClocksEventReasons", mask); }
nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, ulong64 *mask) { return reasons(device, "nvmlDeviceGetSupportedClocksEventReasons", mask); }

// values: reference time in microseconds, violation time in nanoseconds; selector: policy (0 power, 1 thermal, 3 board limit, ...)
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, uint policy, ulong64 times[2]) {
    Rule *rule = initialised ? answer_of(device->index, __func__, (int)policy, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    for (int i = 0; i < 2 && code == SUCCESS; i++) times[i] = (ulong64)number(rule, i);
    return code;
}

ONE(nvmlDeviceGetPowerManagementLimit)
ONE(nvmlDeviceGetPowerManagementDefaultLimit)
TWO(nvmlDeviceGetPowerManagementLimitConstraints)
ONE(nvmlDeviceGetEnforcedPowerLimit)
ONE(nvmlDeviceGetPowerUsage)
ONE_OF(nvmlDeviceGetClockInfo)
ONE_OF(nvmlDeviceGetMaxClockInfo)
ONE_OF(nvmlDeviceGetApplicationsClock)
ONE_OF(nvmlDeviceGetDefaultApplicationsClock)
ONE_OF(nvmlDeviceGetMaxCustomerBoostClock)
ONE_OF(nvmlDeviceGetTemperature)
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, ulong64 *millijoules) { return long_number(device, __func__, -1, -1, millijoules); }

// ---- use ----

typedef struct { ulong64 total, free, used; } Memory;
typedef struct { uint version; ulong64 total, reserved, free, used; } MemoryV2;
_Static_assert(sizeof(MemoryV2) == 0x28, "nvmlMemory_v2_t");

// values: total, reserved by the driver, used by programs (all bytes); the old call counts what is reserved as used
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, Memory *memory) {
    Rule *rule = initialised ? answer_of(device->index, __func__, -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    memory->total = (ulong64)number(rule, 0);
    memory->used = (ulong64)(number(rule, 1) + number(rule, 2));
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, MemoryV2 *memory) {
    Rule *rule = initialised ? answer_of(device->index, "nvmlDeviceGetMemoryInfo", -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    memory->total = (ulong64)number(rule, 0);
    memory->reserved = (ulong64)number(rule, 1);
    memory->used = (ulong64)number(rule, 2);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, uint rates[2]) { return uints(device, __func__, -1, -1, 2, rates, rates + 1); }

typedef struct { uint pid; ulong64 usedGpuMemory; uint gpuInstanceId, computeInstanceId; } Process;
_Static_assert(sizeof(Process) == 24, "nvmlProcessInfo_t");

// values: process id and bytes of each process (-1: not available)
static nvmlReturn_t processes(nvmlDevice_t device, const char *function, uint *count, Process *found) {
    Rule *rule = initialised ? answer_of(device->index, function, -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    uint room = *count, running = (uint)rule->count / 2;
    *count = running;
    if (room < running) return INSUFFICIENT_SIZE;
    for (uint i = 0; i < running; i++)
        found[i] = (Process){(uint)number(rule, (int)(2 * i)), (ulong64)number(rule, (int)(2 * i + 1)), 0xFFFFFFFF, 0xFFFFFFFF};
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, uint *count, Process *found) { return processes(device, "nvmlDeviceGetComputeRunningProcesses", count, found); }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, uint *count, Process *found) { return processes(device, "nvmlDeviceGetComputeRunningProcesses", count, found); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, uint *count, Process *found) { return processes(device, "nvmlDeviceGetGraphicsRunningProcesses", count, found); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, uint *count, Process *found) { return processes(device, "nvmlDeviceGetGraphicsRunningProcesses", count, found); }
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, uint *count, Process *found) { return processes(device, "nvmlDeviceGetMPSComputeRunningProcesses", count, found); }

// ---- PCIe, NUMA, fabric ----

ONE(nvmlDeviceGetCurrPcieLinkGeneration)
ONE(nvmlDeviceGetMaxPcieLinkGeneration)
ONE(nvmlDeviceGetGpuMaxPcieLinkGeneration)
ONE(nvmlDeviceGetCurrPcieLinkWidth)
ONE(nvmlDeviceGetMaxPcieLinkWidth)
ONE(nvmlDeviceGetPcieReplayCounter)
ONE_OF(nvmlDeviceGetPcieThroughput)

// values: 64-bit words of the CPU mask, lowest first
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, uint words, unsigned long *mask) {
    Rule *rule = initialised ? answer_of(device->index, __func__, -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    for (uint i = 0; i < words && code == SUCCESS; i++)
        mask[i] = (int)i < rule->count ? strtoul(rule->values[i], NULL, 0) : 0;
    return code;
}

typedef struct { uint version; unsigned char clusterUuid[16]; uint status, cliqueId; unsigned char state; uint healthMask; unsigned char healthSummary; } FabricInfo;
_Static_assert(sizeof(FabricInfo) == 0x28, "nvmlGpuFabricInfo_v3_t");

// values: state, status, health mask, health summary, last byte of the cluster's UUID, clique
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, FabricInfo *info) {
    Rule *rule = initialised ? answer_of(device->index, __func__, -1, -1) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code != SUCCESS) return code;
    info->state = (unsigned char)number(rule, 0);
    info->status = (uint)number(rule, 1);
    info->healthMask = (uint)number(rule, 2);
    info->clusterUuid[15] = (unsigned char)number(rule, 4);
    info->cliqueId = (uint)number(rule, 5);
    if ((info->version >> 24) >= 3) info->healthSummary = (unsigned char)number(rule, 3);
    return SUCCESS;
}

// ---- NVLink, peers ----

#define OF_LINK(NAME) \
    nvmlReturn_t NAME(nvmlDevice_t device, uint link, uint *a) { \
        nvmlReturn_t code = bounded(device, link); \
        return code ? code : uints(device, __func__, (int)link, -1, 1, a); \
    }

OF_LINK(nvmlDeviceGetNvLinkState)
OF_LINK(nvmlDeviceGetNvLinkVersion)
OF_LINK(nvmlDeviceGetNvLinkRemoteDeviceType)

// selectors: link, capability (0 peer to peer, 1 access to system memory, 5 valid, ...)
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, uint link, uint capability, uint *answer) {
    nvmlReturn_t code = bounded(device, link);
    return code ? code : uints(device, __func__, (int)link, (int)capability, 1, answer);
}

// values: as of nvmlDeviceGetPciInfo; selector: link
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, uint link, PciInfo *info) {
    nvmlReturn_t code = bounded(device, link);
    return code ? code : pci_info(device, "nvmlDeviceGetNvLinkRemotePciInfo", (int)link, info);
}

// selectors: link, counter (0 replay, 1 recovery, 2 CRC of flits, 3 CRC of data, 4 ECC)
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, uint link, uint counter, ulong64 *errors) {
    nvmlReturn_t code = bounded(device, link);
    return code ? code : long_number(device, __func__, (int)link, (int)counter, errors);
}

// values: one, or one for each position; selectors: the peer's index, position
static nvmlReturn_t of_peer(nvmlDevice_t device, const char *function, int peer, int position, int place, uint *answer) {
    Rule *rule = initialised ? answer_of(device->index, function, peer, position) : NULL;
    nvmlReturn_t code = code_of(rule);
    if (code == SUCCESS) *answer = (uint)number(rule, rule->count > 1 ? place : 0);
    return code;
}
// values: NVML's level for each peer in the order of the indexes (10 behind one switch, 20 several, 30 one host bridge, 40 one NUMA node, 50 neither)
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t peer, uint *level) {
    return of_peer(device, __func__, peer->index, -1, peer->index, level);
}
// values: NVML's status (0 is well) of reading, writing, NVLink, atomics, PCI
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, uint way, uint *status) {
    return of_peer(device, __func__, peer->index, (int)way, (int)way, status);
}

// ---- what changes something ----

static nvmlReturn_t changed(const char *function) {
    char path[4096];
    const char *node = getenv("SANDBOX_NODE");
    snprintf(path, sizeof path, "%s/setters.log", node ? node : ".");
    append_line(path, function);
    called(function);
    return SUCCESS;
}
// Arguments are left where they are: the platform's calling convention lets a function take none.
#define CHANGES(NAME) nvmlReturn_t NAME(void) { return changed(__func__); }

CHANGES(nvmlComputeInstanceDestroy)
CHANGES(nvmlDeviceClearAccountingPids)
CHANGES(nvmlDeviceClearCpuAffinity)
CHANGES(nvmlDeviceClearEccErrorCounts)
CHANGES(nvmlDeviceClearFieldValues)
CHANGES(nvmlDeviceCreateGpuInstance)
CHANGES(nvmlDeviceCreateGpuInstanceWithPlacement)
CHANGES(nvmlDeviceDiscoverGpus)
CHANGES(nvmlDeviceFreezeNvLinkUtilizationCounter)
CHANGES(nvmlDeviceModifyDrainState)
CHANGES(nvmlDevicePowerSmoothingSetState)
CHANGES(nvmlDeviceReadWritePRM_v1)
CHANGES(nvmlDeviceRemoveGpu)
CHANGES(nvmlDeviceRemoveGpu_v2)
CHANGES(nvmlDeviceResetApplicationsClocks)
CHANGES(nvmlDeviceResetGpuLockedClocks)
CHANGES(nvmlDeviceResetMemoryLockedClocks)
CHANGES(nvmlDeviceResetNvLinkErrorCounters)
CHANGES(nvmlDeviceResetNvLinkUtilizationCounter)
CHANGES(nvmlDeviceSetAPIRestriction)
CHANGES(nvmlDeviceSetAccountingMode)
CHANGES(nvmlDeviceSetAdaptiveTgpMode_v1)
CHANGES(nvmlDeviceSetApplicationsClocks)
CHANGES(nvmlDeviceSetAutoBoostedClocksEnabled)
CHANGES(nvmlDeviceSetClockOffsets)
CHANGES(nvmlDeviceSetComputeMode)
CHANGES(nvmlDeviceSetConfComputeUnprotectedMemSize)
CHANGES(nvmlDeviceSetCpuAffinity)
CHANGES(nvmlDeviceSetDefaultAutoBoostedClocksEnabled)
CHANGES(nvmlDeviceSetDefaultFanSpeed_v2)
CHANGES(nvmlDeviceSetDramEncryptionMode)
CHANGES(nvmlDeviceSetDriverModel)
CHANGES(nvmlDeviceSetEccMode)
CHANGES(nvmlDeviceSetFanControlPolicy)
CHANGES(nvmlDeviceSetFanSpeed_v2)
CHANGES(nvmlDeviceSetGpcClkVfOffset)
CHANGES(nvmlDeviceSetGpuLockedClocks)
CHANGES(nvmlDeviceSetGpuOperationMode)
CHANGES(nvmlDeviceSetHostname_v1)
CHANGES(nvmlDeviceSetMemClkVfOffset)
CHANGES(nvmlDeviceSetMemoryLimits_v1)
CHANGES(nvmlDeviceSetMemoryLockedClocks)
CHANGES(nvmlDeviceSetMigMode)
CHANGES(nvmlDeviceSetNvLinkDeviceLowPowerThreshold)
CHANGES(nvmlDeviceSetNvLinkUtilizationControl)
CHANGES(nvmlDeviceSetNvlinkBwMode)
CHANGES(nvmlDeviceSetNvlinkBwModeAsync_v1)
CHANGES(nvmlDeviceSetPersistenceMode)
CHANGES(nvmlDeviceSetPowerManagementLimit)
CHANGES(nvmlDeviceSetPowerManagementLimit_v2)
CHANGES(nvmlDeviceSetPowerMizerMode_v1)
CHANGES(nvmlDeviceSetRusdSettings_v1)
CHANGES(nvmlDeviceSetTemperatureThreshold)
CHANGES(nvmlDeviceSetVgpuCapabilities)
CHANGES(nvmlDeviceSetVgpuHeterogeneousMode)
CHANGES(nvmlDeviceSetVgpuSchedulerState)
CHANGES(nvmlDeviceSetVgpuSchedulerState_v2)
CHANGES(nvmlDeviceSetVirtualizationMode)
CHANGES(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles)
CHANGES(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles)
CHANGES(nvmlGpmSetStreamingEnabled)
CHANGES(nvmlGpuInstanceCreateComputeInstance)
CHANGES(nvmlGpuInstanceCreateComputeInstanceWithPlacement)
CHANGES(nvmlGpuInstanceDestroy)
CHANGES(nvmlGpuInstanceSetVgpuHeterogeneousMode)
CHANGES(nvmlGpuInstanceSetVgpuSchedulerState)
CHANGES(nvmlGpuInstanceSetVgpuSchedulerState_v2)
CHANGES(nvmlSetVgpuVersion)
CHANGES(nvmlSystemSetConfComputeGpusReadyState)
CHANGES(nvmlSystemSetConfComputeKeyRotationThresholdInfo)
CHANGES(nvmlSystemSetNvlinkBwMode)
CHANGES(nvmlUnitSetLedState)
CHANGES(nvmlVgpuInstanceClearAccountingPids)
CHANGES(nvmlVgpuInstanceSetEncoderCapacity)
