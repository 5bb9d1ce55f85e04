/* cuDNN 9. Its backend offers one engine with one configuration; no workspace, no notes, no knobs. */
#include "stub.h"

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
NAMES(cudnnGetErrorString)
void cudnnGetLastErrorString(char *message, size_t bytes) { if (bytes) *message = '\0'; }

CREATES(cudnnCreate)
CREATES(cudnnCreateActivationDescriptor)
CREATES(cudnnCreateConvolutionDescriptor)
CREATES(cudnnCreateDropoutDescriptor)
CREATES(cudnnCreateFilterDescriptor)
CREATES(cudnnCreateLRNDescriptor)
CREATES(cudnnCreatePoolingDescriptor)
CREATES(cudnnCreateRNNDataDescriptor)
CREATES(cudnnCreateRNNDescriptor)
CREATES(cudnnCreateReduceTensorDescriptor)
CREATES(cudnnCreateTensorDescriptor)
int cudnnGetStream(void *handle, void **stream) { return *stream = NULL, SUCCESS; }

/* sizes of work areas */
enum { SMALL_AREA = 1 << 10, RNN_WEIGHTS = 64 << 20 };

int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) { return *bytes = SMALL_AREA, SUCCESS; }
int cudnnGetConvolutionForwardWorkspaceSize(void *handle, void *x, void *w, void *convolution, void *y, int algorithm,
                                            size_t *bytes) {
  return *bytes = 0, SUCCESS;
}
int cudnnGetReductionIndicesSize(void *handle, void *reduction, void *a, void *c, size_t *bytes) {
  return *bytes = 0, SUCCESS;
}
int cudnnGetReductionWorkspaceSize(void *handle, void *reduction, void *a, void *c, size_t *bytes) {
  return *bytes = 0, SUCCESS;
}
int cudnnGetRNNTempSpaceSizes(void *handle, void *rnn, int mode, void *x, size_t *work, size_t *reserve) {
  if (work) *work = SMALL_AREA;
  if (reserve) *reserve = 0;
  return SUCCESS;
}
int cudnnGetRNNWeightSpaceSize(void *handle, void *rnn, size_t *bytes) { return *bytes = RNN_WEIGHTS, SUCCESS; }
int cudnnGetRNNWeightParams(void *handle, void *rnn, int layer, size_t bytes, void *weights, int gate, void *matrix,
                            void **matrix_address, void *bias, void **bias_address) {
  *matrix_address = *bias_address = weights; /* nothing is multiplied, so that they may overlap */
  return SUCCESS;
}
int cudnnGetTensorNdDescriptor(void *tensor, int wanted, int *type, int *rank, int *sizes, int *strides) {
  *type = 0, *rank = wanted;
  for (int axis = 0; axis < wanted; axis++) sizes[axis] = strides[axis] = 1;
  return SUCCESS;
}

/* the older search for a convolution's algorithm */
struct algorithm { /* cudnnConvolutionFwdAlgoPerf_t */
  int number, status;
  float milliseconds;
  size_t workspace;
  int deterministic, math, reserved[3];
};
_Static_assert(sizeof(struct algorithm) == 48, "as in cuDNN 9");

int cudnnGetConvolutionForwardAlgorithm_v7(void *handle, void *x, void *w, void *convolution, void *y, int wanted,
                                           int *found, struct algorithm *best) {
  *best = (struct algorithm){.number = 1};
  return *found = 1, SUCCESS;
}
int cudnnFindConvolutionForwardAlgorithmEx(void *handle, void *x, void *x_data, void *w, void *w_data,
                                           void *convolution, void *y, void *y_data, int wanted, int *found,
                                           struct algorithm *best, void *workspace, size_t bytes) {
  return cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, convolution, y, wanted, found, best);
}

/* the backend: descriptors of graphs, engines and configurations */
enum { HEURISTIC_RESULTS = 202, ENGINE_OF_CONFIGURATION = 300 };               /* names of attributes */
enum { INT64 = 3, DOUBLE = 5, POINTER = 6, NUMERICAL_NOTE = 11, DESCRIPTOR = 15, BEHAVIOUR_NOTE = 19 }; /* types */

int cudnnBackendCreateDescriptor(int kind, void **made) {
  int status = new_handle(made);
  if (status == SUCCESS) *(int *)*made = kind;
  return status;
}

static int is_single_descriptor(int name) { return name == HEURISTIC_RESULTS || name == ENGINE_OF_CONFIGURATION; }
static int is_list(int type) { return type == DESCRIPTOR || type == NUMERICAL_NOTE || type == BEHAVIOUR_NOTE; }
static int is_wide(int type) { return type == INT64 || type == DOUBLE || type == POINTER; }

/* A descriptor that is asked for was made by the caller, who has it filled: it stays as it is. */
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *values) {
  int is_empty = is_list(type) && !is_single_descriptor(name);
  if (count) *count = !is_empty;
  if (!is_list(type) && values && wanted > 0) memset(values, 0, is_wide(type) ? 8 : 4);
  return SUCCESS;
}
