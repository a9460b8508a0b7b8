/* The functions of NVML that plansmith asks, for two GPUs that are not there: NVML_STUB chooses what is the matter,
 * NVML_STUB_USED names a file that holds how many bytes of device memory are used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NOT_LOADED = 9, MISMATCH = 18 };
typedef long device; /* 1 and 2 are GPUs, 11 and 13 parts of the first */
struct memory { unsigned long long total, free, used; };

static int is(const char *what) {
    const char *mode = getenv("NVML_STUB");
    return mode != NULL && strcmp(mode, what) == 0;
}

static const char *uuid(device one) {
    switch (one) {
    case 1: return "GPU-11111111-aaaa-bbbb-cccc-000000000001";
    case 2: return "GPU-11112222-aaaa-bbbb-cccc-000000000002";
    case 11: return "MIG-aaaaaaaa-0000-0000-0000-000000000011";
    default: return "MIG-bbbbbbbb-0000-0000-0000-000000000013";
    }
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return is("mismatch") ? MISMATCH : is("not loaded") ? NOT_LOADED : SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == MISMATCH ? "Driver/library version mismatch" : "another error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "570.124.06") < 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = is("no GPU") ? 0 : 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *one) { *one = index + 1; return index < 2 ? SUCCESS : INVALID; }

int nvmlDeviceGetHandleByUUID(const char *text, device *one) {
    static const device all[] = {1, 2, 11, 13};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, uuid(all[i])) == 0) { *one = all[i]; return SUCCESS; }
    return NOT_FOUND;
}

int nvmlDeviceGetName(device one, char *text, unsigned size) {
    const char *whole = is("mixed") && one == 2 ? "NVIDIA T400" : "NVIDIA A100-SXM4-80GB";
    return snprintf(text, size, one > 2 ? "%s MIG 3g.40gb" : "%s", whole) < 0;
}
int nvmlDeviceGetUUID(device one, char *text, unsigned size) { return snprintf(text, size, "%s", uuid(one)) < 0; }
int nvmlDeviceGetCudaComputeCapability(device one, int *major, int *minor) {
    *major = is("mixed") && one == 2 ? 7 : 8;
    *minor = is("mixed") && one == 2 ? 5 : 0;
    return one > 2 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device one, struct memory *info) {
    const char *place = getenv("NVML_STUB_USED");
    FILE *file = place != NULL ? fopen(place, "r") : NULL;
    if (is("unified")) return NOT_SUPPORTED;
    info->total = (one > 2 ? 40ULL : 80ULL) << 30;
    info->used = 0;
    if (file != NULL) {
        if (fscanf(file, "%llu", &info->used) != 1) info->used = 0;
        fclose(file);
    }
    info->free = info->total - info->used;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device one, unsigned *now, unsigned *next) {
    *now = *next = is("divided") && one == 1;
    return is("divided") ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(device one, unsigned *count) { (void)one; *count = 4; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(device one, unsigned index, device *part) {
    (void)one;
    *part = 11 + index;
    return index % 2 == 0 && index < 4 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(device part, unsigned *id) { *id = part == 11 ? 1 : 2; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(device part, unsigned *id) { (void)part; *id = 0; return SUCCESS; }
