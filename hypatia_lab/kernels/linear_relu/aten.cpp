// Linear+ReLU as one C++ operation over ATen's own kernels, on whatever device the tensors live (S004's "Plan C").

#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

namespace {

// [aten]
at::Tensor linear_relu_aten(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    at::Tensor y = at::linear(x, weight, bias);  // (1)
    return at::relu_(y);  // (2)
}
// [/aten]

}  // namespace

TORCH_LIBRARY_FRAGMENT(hypatia, library) {
    library.def("linear_relu_aten(Tensor x, Tensor weight, Tensor? bias) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hypatia, CPU, library) { library.impl("linear_relu_aten", &linear_relu_aten); }
TORCH_LIBRARY_IMPL(hypatia, CUDA, library) { library.impl("linear_relu_aten", &linear_relu_aten); }
