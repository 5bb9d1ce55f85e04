/* The driver. */
#include "stub.h"

enum { MAJOR_ATTRIBUTE = 75, MINOR_ATTRIBUTE = 76 };

int cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
int cuDeviceGet(int *device) { return *device = 0, SUCCESS; }
int cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == MAJOR_ATTRIBUTE ? CAPABILITY_MAJOR : attribute == MINOR_ATTRIBUTE ? CAPABILITY_MINOR : 1024;
  return SUCCESS;
}
CREATES(cuModuleLoadData)
CREATES(cuModuleGetFunction)
int cuGetErrorName(int code, const char **name) { return *name = "stub", SUCCESS; }
int cuGetErrorString(int code, const char **text) { return *text = "stub", SUCCESS; }
