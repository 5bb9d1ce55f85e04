#include "stub.h"

CREATES(cublasLtCreate)
CREATES(cublasLtMatmulDescCreate)
CREATES(cublasLtMatmulPreferenceCreate)
CREATES(cublasLtMatrixLayoutCreate)
CREATES(cublasLtMatrixTransformDescCreate)

/* Some algorithm is found, whatever the product: without one the provider gives up. */
enum { RESULT_BYTES = 96 };

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
  *found = wanted > 0;
  if (*found) memset(results, 0, RESULT_BYTES);
  return SUCCESS;
}
