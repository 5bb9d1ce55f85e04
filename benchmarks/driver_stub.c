/* A stub of a CUDA device, for listing the kernels that onnxruntime-gpu registers.

   The providers open a device before they list their kernels, and link to the driver and to TensorRT, although
   the kernels are compiled in. Nothing can be computed with this.

     pip install 'onnxruntime-gpu[cuda,cudnn]' && site=$(python -c 'import nvidia; print(*nvidia.__path__)')
     mkdir stub && gcc -shared -fPIC -o stub/libcuda.so.1 benchmarks/driver_stub.c
     for name in nvinfer nvonnxparser; do ln -s libcuda.so.1 stub/lib$name.so.10; done
     LD_PRELOAD=$PWD/stub/libcuda.so.1 LD_LIBRARY_PATH=$PWD/stub:$(find $site -name lib | paste -sd:) \
       python benchmarks/kernels.py --json kernels.json
*/
#include <stddef.h>

#define OK(name) int name(void) { return 0; }

/* the CUDA runtime: one device without properties */
OK(cudaSetDevice)
OK(cudaDeviceSynchronize)
OK(cudaGetDeviceProperties)
OK(cudaMemGetInfo)
OK(cudaGetDevice)
OK(cudaStreamSynchronize)
OK(cudaStreamDestroy)
OK(cudaFree)
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { *stream = NULL; return 0; }

/* the driver */
OK(cuTensorMapEncodeTiled)

/* TensorRT */
OK(getInferLibVersion)
OK(createInferBuilder_INTERNAL)
OK(createInferRefitter_INTERNAL)
OK(createInferRuntime_INTERNAL)
OK(createNvOnnxParser_INTERNAL)
OK(createNvOnnxParserRefitter_INTERNAL)
OK(getPluginRegistry)
OK(initLibNvInferPlugins)
