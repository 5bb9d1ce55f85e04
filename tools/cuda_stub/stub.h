/* What the stub CUDA libraries share. They stand in for a GPU so that onnxruntime's CUDA provider opens sessions:
   it partitions and fuses as on the device, and even runs, but nothing is computed. Every function that is not
   written out in one of these files is generated and returns success (tools/stub_libraries.py). */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };

enum {
  CUDA_VERSION = 13000,
  CUDNN_VERSION = 91400,
  CAPABILITY_MAJOR = 9, /* the device is an H200, as far as the provider asks */
  CAPABILITY_MINOR = 0,
  MULTIPROCESSORS = 132,
  THREADS_PER_BLOCK = 1024,
  THREADS_PER_MULTIPROCESSOR = 2048,
  BLOCKS_PER_MULTIPROCESSOR = 32,
  REGISTERS = 65536,
  WARP = 32,
  SHARED_PER_BLOCK = 48 << 10,
  SHARED_PER_BLOCK_OPT_IN = 227 << 10,
  SHARED_PER_MULTIPROCESSOR = 228 << 10,
  L2_BYTES = 50 << 20,
  LARGEST_GRID = 65535,
};

#define MEMORY_BYTES ((size_t)140 << 30)

/* What an opaque handle points to: large enough for callers that keep bytes of their own in it. */
enum { HANDLE_BYTES = 4096 };

static inline int new_handle(void **made) {
  *made = calloc(1, HANDLE_BYTES);
  return *made ? SUCCESS : OUT_OF_MEMORY;
}

#define CREATES(function) \
  int function(void **made) { return new_handle(made); }
#define NAMES(function) \
  const char *function(int code) { return code ? #function : "success"; }
