/* The CUDA 13 runtime. Device memory is zeroed host memory; a copy is a memmove; a launch does nothing. */
#include "stub.h"

enum { ALIGNMENT = 256 };

/* memory */

int cudaMalloc(void **made, size_t bytes) {
  size_t whole = (bytes / ALIGNMENT + 1) * ALIGNMENT;
  *made = aligned_alloc(ALIGNMENT, whole);
  if (!*made) return OUT_OF_MEMORY;
  memset(*made, 0, whole);
  return SUCCESS;
}
int cudaMallocHost(void **made, size_t bytes) { return cudaMalloc(made, bytes); }
int cudaHostAlloc(void **made, size_t bytes, unsigned flags) { return cudaMalloc(made, bytes); }
int cudaMallocAsync(void **made, size_t bytes, void *stream) { return cudaMalloc(made, bytes); }
int cudaMallocFromPoolAsync(void **made, size_t bytes, void *pool, void *stream) { return cudaMalloc(made, bytes); }

int cudaFree(void *memory) { return free(memory), SUCCESS; }
int cudaFreeHost(void *memory) { return cudaFree(memory); }
int cudaFreeAsync(void *memory, void *stream) { return cudaFree(memory); }

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  if (bytes) memmove(to, from, bytes);
  return SUCCESS;
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  return cudaMemcpy(to, from, bytes, kind);
}
int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t rows,
                      int kind, void *stream) {
  for (; rows; rows--, to += to_pitch, from += from_pitch) cudaMemcpy(to, from, width, kind);
  return SUCCESS;
}
/* constants of kernels that do not exist */
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
  return memset(to, 0, bytes), SUCCESS;
}
int cudaMemset(void *memory, int value, size_t bytes) { return memset(memory, value, bytes), SUCCESS; }
int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream) { return cudaMemset(memory, value, bytes); }

int cudaMemGetInfo(size_t *unused, size_t *total) {
  *total = MEMORY_BYTES;
  *unused = MEMORY_BYTES - MEMORY_BYTES / 16;
  return SUCCESS;
}
int cudaMemPoolCreate(void **made, const void *properties) { return new_handle(made); }
int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) { return memset(value, 0, sizeof(uint64_t)), SUCCESS; }

struct pointer_attributes { /* 88 bytes */
  int kind, device;
  const void *device_address, *host_address;
  char reserved[64];
};
_Static_assert(sizeof(struct pointer_attributes) == 88, "as in CUDA 13");
enum { DEVICE_MEMORY = 2 };

int cudaPointerGetAttributes(struct pointer_attributes *found, const void *memory) {
  *found = (struct pointer_attributes){.kind = DEVICE_MEMORY, .device_address = memory};
  return SUCCESS;
}

/* the device */

int cudaGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
int cudaGetDevice(int *device) { return *device = 0, SUCCESS; }
int cudaDriverGetVersion(int *version) { return *version = CUDA_VERSION, SUCCESS; }
int cudaRuntimeGetVersion(int *version) { return *version = CUDA_VERSION, SUCCESS; }

struct device_properties { /* cudaDeviceProp of CUDA 13: 1,008 bytes; CUDA 12 has fields that are gone here */
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t memory, shared_per_block;
  int registers_per_block, warp;
  size_t pitch;
  int threads_per_block, block_sizes[3], grid_sizes[3];
  size_t constants;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int multiprocessors, integrated, maps_host_memory;
  char textures_and_surfaces[164];
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, asynchronous_engines, unified_addressing;
  int bus_width, l2, persisting_l2, threads_per_multiprocessor, stream_priorities, global_l1, local_l1;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, managed_memory, multi_gpu[2], host_atomics, pageable[2], preemption;
  int host_pointers, cooperative_launch;
  size_t shared_per_block_opt_in;
  int host_page_tables, direct_managed, blocks_per_multiprocessor, access_window;
  size_t shared_reserved;
  int host_register, sparse, host_register_read_only, semaphores, memory_pools;
  char rest[284];
};
_Static_assert(offsetof(struct device_properties, major) == 360, "as in CUDA 13");
_Static_assert(offsetof(struct device_properties, concurrent_kernels) == 560, "as in CUDA 13");
_Static_assert(offsetof(struct device_properties, shared_per_block_opt_in) == 672, "as in CUDA 13");
_Static_assert(offsetof(struct device_properties, memory_pools) == 720, "as in CUDA 13");
_Static_assert(sizeof(struct device_properties) == 1008, "as in CUDA 13");

int cudaGetDeviceProperties(struct device_properties *found, int device) {
  *found = (struct device_properties){
      .name = "stub of a GPU",
      .memory = MEMORY_BYTES,
      .shared_per_block = SHARED_PER_BLOCK,
      .registers_per_block = REGISTERS,
      .warp = WARP,
      .pitch = INT32_MAX,
      .threads_per_block = THREADS_PER_BLOCK,
      .block_sizes = {THREADS_PER_BLOCK, THREADS_PER_BLOCK, 64},
      .grid_sizes = {INT32_MAX, LARGEST_GRID, LARGEST_GRID},
      .constants = 64 << 10,
      .major = CAPABILITY_MAJOR,
      .minor = CAPABILITY_MINOR,
      .texture_alignment = 512,
      .multiprocessors = MULTIPROCESSORS,
      .maps_host_memory = 1,
      .concurrent_kernels = 1,
      .asynchronous_engines = 3,
      .unified_addressing = 1,
      .bus_width = 5120,
      .l2 = L2_BYTES,
      .threads_per_multiprocessor = THREADS_PER_MULTIPROCESSOR,
      .shared_per_multiprocessor = SHARED_PER_MULTIPROCESSOR,
      .registers_per_multiprocessor = REGISTERS,
      .managed_memory = 1,
      .cooperative_launch = 1,
      .shared_per_block_opt_in = SHARED_PER_BLOCK_OPT_IN,
      .blocks_per_multiprocessor = BLOCKS_PER_MULTIPROCESSOR,
      .shared_reserved = 1 << 10,
      .memory_pools = 1,
  };
  return SUCCESS;
}

/* Values by number of cudaDeviceAttr; all other attributes are switches, and on. */
static const int ATTRIBUTES[] = {
    [1] = THREADS_PER_BLOCK, [2] = THREADS_PER_BLOCK, [3] = THREADS_PER_BLOCK, [4] = 64,
    [5] = INT32_MAX, [6] = LARGEST_GRID, [7] = LARGEST_GRID,
    [8] = SHARED_PER_BLOCK, [9] = 64 << 10, [10] = WARP, [12] = REGISTERS,
    [13] = 1700000, /* kHz */
    [16] = MULTIPROCESSORS, [38] = L2_BYTES, [39] = THREADS_PER_MULTIPROCESSOR,
    [75] = CAPABILITY_MAJOR, [76] = CAPABILITY_MINOR,
    [81] = SHARED_PER_MULTIPROCESSOR, [82] = REGISTERS,
    [97] = SHARED_PER_BLOCK_OPT_IN, [106] = BLOCKS_PER_MULTIPROCESSOR,
};
enum { KNOWN = sizeof ATTRIBUTES / sizeof *ATTRIBUTES, MINOR = 76 };

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  int known = attribute > 0 && attribute < KNOWN ? ATTRIBUTES[attribute] : 0;
  *value = known || attribute == MINOR ? known : 1;
  return SUCCESS;
}

/* kernels */

struct function_attributes { /* 144 bytes */
  size_t shared, constants, local;
  int threads_per_block, registers, ptx, binary, cache_mode, dynamic_shared;
  char rest[96];
};
_Static_assert(sizeof(struct function_attributes) == 144, "as in CUDA 13");

int cudaFuncGetAttributes(struct function_attributes *found, const void *function) {
  *found = (struct function_attributes){
      .threads_per_block = THREADS_PER_BLOCK,
      .registers = 32,
      .ptx = 10 * CAPABILITY_MAJOR + CAPABILITY_MINOR,
      .binary = 10 * CAPABILITY_MAJOR + CAPABILITY_MINOR,
      .dynamic_shared = SHARED_PER_BLOCK_OPT_IN,
  };
  return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
  return *blocks = 2, SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                           size_t shared, unsigned flags) {
  return *blocks = 2, SUCCESS;
}
CREATES(cudaLibraryLoadData)
CREATES(cudaLibraryGetKernel)

static int does_nothing(void) { return SUCCESS; }

int cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                     int *status) {
  *found = (void *)does_nothing;
  if (status) *status = SUCCESS;
  return SUCCESS;
}

/* What nvcc generates around a launch f<<<grid, block, shared, stream>>>: pushed, popped, launched. */
struct size3 { unsigned x, y, z; };
static __thread struct { struct size3 grid, block; size_t shared; void *stream; } launch;

unsigned __cudaPushCallConfiguration(struct size3 grid, struct size3 block, size_t shared, void *stream) {
  launch.grid = grid, launch.block = block, launch.shared = shared, launch.stream = stream;
  return SUCCESS;
}
int __cudaPopCallConfiguration(struct size3 *grid, struct size3 *block, size_t *shared, void **stream) {
  *grid = launch.grid, *block = launch.block, *shared = launch.shared, *stream = launch.stream;
  return SUCCESS;
}
int __cudaGetKernel(const void **kernel, const void *function) { return *kernel = function, SUCCESS; }
void **__cudaRegisterFatBinary(void *binary) {
  static void *registered[4];
  return registered;
}

/* streams, events, graphs */

CREATES(cudaStreamCreate)
int cudaStreamCreateWithFlags(void **made, unsigned flags) { return new_handle(made); }
int cudaStreamCreateWithPriority(void **made, unsigned flags, int priority) { return new_handle(made); }
int cudaStreamIsCapturing(void *stream, int *status) { return *status = 0, SUCCESS; }
int cudaStreamEndCapture(void *stream, void **made) { return new_handle(made); }
int cudaGraphInstantiate(void **made, void *graph, unsigned long long flags) { return new_handle(made); }
CREATES(cudaEventCreate)
int cudaEventCreateWithFlags(void **made, unsigned flags) { return new_handle(made); }
int cudaEventElapsedTime(float *milliseconds, void *from, void *to) { return *milliseconds = 0.1f, SUCCESS; }
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *argument) { return function(argument), SUCCESS; }

NAMES(cudaGetErrorName)
NAMES(cudaGetErrorString)
