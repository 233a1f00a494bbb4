// In-place ReLU, one thread an element, every element written: the seeds' "v2" runs it after the library's GEMM.
// `x < 0` and not `x > 0`: a NaN stays a NaN, as in torch.relu.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// [relu]
template <typename scalar, typename accumulator>
__global__ void relu_inplace(scalar* data, long long size) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;  // (1)
    if (i < size) data[i] = static_cast<accumulator>(data[i]) < accumulator(0) ? static_cast<scalar>(accumulator(0)) : data[i];
}
// [/relu]
