/* A stand-in for the driver's library, for tests of the real Python binding. What it answers stands in a text file that is
 * read again at each call: lines "gpu.key value" or "key value". Nothing here is the vendor's; only the names are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, LOST = 15 };
typedef void *dev;
typedef unsigned int u32;
typedef unsigned long long u64;

static int look(const char *key, char *out, size_t size) {
    const char *path = getenv("STANDIN_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    size_t length = strlen(key);
    int found = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) || line[length] != ' ') continue;
        snprintf(out, size, "%s", line + length + 1);
        out[strcspn(out, "\n")] = 0;
        found = 1;
    }
    fclose(file);
    return found;
}

static long long value(const char *key, long long otherwise) {
    char text[200];
    return look(key, text, sizeof text) ? strtoll(text, NULL, 0) : otherwise;
}

static long long of(int gpu, const char *key, long long otherwise) {
    char full[100];
    snprintf(full, sizeof full, "%d.%s", gpu, key);
    return value(full, otherwise);
}

static void hang(void) { while (value("hang", 0)) usleep(20000); }
static int whole(dev d) { long n = (long)d; return n > 1000 ? (int)((n - 1001) / 16) : (int)(n - 1); }
static int slice(dev d) { long n = (long)d; return n > 1000 ? (int)((n - 1001) % 16) : -1; }

/* Every question of a device: it may hang, be lost, or not be known to this card. */
#define ASK(d) do { hang(); int error = (int)of(whole(d), "error", 0); if (error) return error; } while (0)
#define KNOWN(d, key) do { ASK(d); char full[100], text[200]; snprintf(full, sizeof full, "%d.%s", whole(d), key); \
    if (!look(full, text, sizeof text)) return NOT_SUPPORTED; } while (0)
#define U32(name, key, otherwise) API int name(dev d, u32 *v) { ASK(d); *v = (u32)of(whole(d), key, otherwise); return OK; }

API int nvmlInitWithFlags(u32 flags) { (void)flags; hang(); return (int)value("init_error", 0); }
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { return OK; }
API const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "error of the stand-in"; }
API int nvmlDeviceGetCount_v2(u32 *count) { hang(); *count = (u32)value("count", 0); return OK; }
API int nvmlDeviceGetHandleByIndex_v2(u32 index, dev *d) {
    char key[40];
    int error = (int)of((int)index, "error", 0);
    snprintf(key, sizeof key, "at%u", index);
    if (error) return error;
    *d = (dev)(long)(value(key, index) + 1);
    return OK;
}
API int nvmlDeviceGetIndex(dev d, u32 *v) { ASK(d); *v = (u32)whole(d); return OK; }
API int nvmlDeviceGetName(dev d, char *out, u32 size) { ASK(d); snprintf(out, size, "NVIDIA H100 80GB HBM3 SXM"); return OK; }
API int nvmlDeviceGetSerial(dev d, char *out, u32 size) { ASK(d); snprintf(out, size, "16500000%d", whole(d)); return OK; }
API int nvmlDeviceGetUUID(dev d, char *out, u32 size) {
    ASK(d);
    if (slice(d) >= 0) snprintf(out, size, "MIG-0000000%d-0000-0000-0000-00000000000%d", whole(d), slice(d));
    else snprintf(out, size, "GPU-0000000%d-0000-0000-0000-000000000000", whole(d));
    return OK;
}
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
API int nvmlDeviceGetPciInfo_v3(dev d, struct pci *p) {
    ASK(d);
    memset(p, 0, sizeof *p);
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", 0x10 + whole(d));
    return OK;
}
API int nvmlDeviceGetTotalEccErrors(dev d, u32 type, u32 counter, u64 *v) {
    const char *key = type == 0 ? "corrected" : counter == 0 ? "uncorrected" : "lifetime";
    ASK(d);
    *v = (u64)(slice(d) >= 0 ? 0 : of(whole(d), key, 0));
    return OK;
}
API int nvmlDeviceGetRemappedRows(dev d, u32 *correctable, u32 *uncorrectable, u32 *pending, u32 *failed) {
    ASK(d);
    *correctable = (u32)of(whole(d), "remap_correctable", 0);
    *uncorrectable = (u32)of(whole(d), "remap_uncorrectable", 0);
    *pending = (u32)of(whole(d), "remap_pending", 0);
    *failed = (u32)of(whole(d), "remap_failed", 0);
    return OK;
}
struct field { u32 id, scope; long long at, took; u32 type, result; u64 value; };
API int nvmlDeviceGetFieldValues(dev d, int count, struct field *fields) {
    char key[40], text[200];
    ASK(d);
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "%d.field%u", whole(d), fields[i].id);
        fields[i].type = 3;
        fields[i].result = look(key, text, sizeof text) ? OK : NOT_SUPPORTED;
        fields[i].value = fields[i].result == OK ? strtoull(text, NULL, 0) : 0;
    }
    return OK;
}
API int nvmlDeviceGetCurrentClocksEventReasons(dev d, u64 *v) { ASK(d); *v = (u64)of(whole(d), "reasons", 0); return OK; }
API int nvmlDeviceGetTemperature(dev d, u32 kind, u32 *v) { (void)kind; ASK(d); *v = (u32)of(whole(d), "temperature", 45); return OK; }
API int nvmlDeviceGetPowerUsage(dev d, u32 *v) { ASK(d); *v = (u32)of(whole(d), "milliwatts", 350000); return OK; }
U32(nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
U32(nvmlDeviceGetMaxPcieLinkWidth, "max_width", 16)
U32(nvmlDeviceGetCurrPcieLinkGeneration, "generation", 5)
U32(nvmlDeviceGetMaxPcieLinkGeneration, "max_generation", 5)
U32(nvmlDeviceGetPcieReplayCounter, "replays", 0)
U32(nvmlDeviceGetPerformanceState, "pstate", 0)
API int nvmlDeviceGetUtilizationRates(dev d, u32 *v) { ASK(d); v[0] = (u32)of(whole(d), "use", 97); v[1] = 40; return OK; }
API int nvmlDeviceGetClockInfo(dev d, u32 kind, u32 *v) { (void)kind; ASK(d); *v = (u32)of(whole(d), "clock", 1980); return OK; }
API int nvmlDeviceGetNvLinkState(dev d, u32 link, u32 *v) {
    ASK(d);
    if (link >= 18) return INVALID;
    *v = link >= (u32)of(whole(d), "links_down", 0);
    return OK;
}
struct fabric { u32 version; unsigned char cluster[16]; u32 status, clique, state, mask; unsigned char summary; };
API int nvmlDeviceGetGpuFabricInfoV(dev d, struct fabric *f) {
    KNOWN(d, "fabric_state");
    f->state = (u32)of(whole(d), "fabric_state", 3);
    f->status = (u32)of(whole(d), "fabric_status", 0);
    f->mask = (u32)of(whole(d), "fabric_mask", 0);
    return OK;
}
API int nvmlDeviceGetMigMode(dev d, u32 *now, u32 *later) { ASK(d); *now = *later = of(whole(d), "slices", 0) > 0; return OK; }
U32(nvmlDeviceGetMaxMigDeviceCount, "slices", 0)
API int nvmlDeviceGetMigDeviceHandleByIndex(dev d, u32 index, dev *piece) {
    ASK(d);
    if ((long long)index >= of(whole(d), "slices", 0)) return INVALID;
    *piece = (dev)(long)(1001 + whole(d) * 16 + (int)index);
    return OK;
}
API int nvmlDeviceGetGpuInstanceId(dev d, u32 *v) { ASK(d); *v = (u32)(slice(d) + 1); return OK; }
API int nvmlDeviceGetComputeInstanceId(dev d, u32 *v) { ASK(d); *v = 0; return OK; }

/* Events: "event N" counts them; "event_gpu", "event_type", "event_data", "event_instance" say what the newest is. */
static long long told = -1;
API int nvmlEventSetCreate(dev *set) { *set = (dev)1; if (told < 0) told = value("event", 0); return OK; }
API int nvmlEventSetFree(dev set) { (void)set; return OK; }
API int nvmlDeviceGetSupportedEventTypes(dev d, u64 *types) { ASK(d); *types = 0xFFFF; return OK; }
API int nvmlDeviceRegisterEvents(dev d, u64 types, dev set) { (void)types; (void)set; ASK(d); return OK; }
struct event { dev device; u64 type, data; u32 gpu_instance, compute_instance; };
API int nvmlEventSetWait_v2(dev set, struct event *e, u32 wait_ms) {
    (void)set;
    for (u32 waited = 0;; waited += 10) {
        hang();
        if (value("wait_error", 0)) return (int)value("wait_error", 0);
        if (value("event", 0) > told) {
            told = value("event", 0);
            e->device = (dev)(long)(value("event_gpu", 0) + 1);
            e->type = (u64)value("event_type", 8);
            e->data = (u64)value("event_data", 79);
            e->gpu_instance = (u32)value("event_instance", 0xFFFFFFFF);
            e->compute_instance = e->gpu_instance == 0xFFFFFFFF ? 0xFFFFFFFF : 0;
            return OK;
        }
        if (waited >= wait_ms) return TIMEOUT;
        usleep(10000);
    }
}
