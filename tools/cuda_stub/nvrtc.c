#include "stub.h"

int nvrtcVersion(int *major, int *minor) {
  *major = CUDA_VERSION / 1000, *minor = CUDA_VERSION % 1000 / 10;
  return SUCCESS;
}
