// Linear+ReLU with both its passes by operators of the lab's, for autograd's engine alone: no Python in the backward
// pass, whose thread would have to wait for the interpreter.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <deque>
#include <mutex>
#include <string>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

struct Operators {
    c10::OperatorHandle forward, gradients, again;
};
std::mutex enrolling;
std::deque<Operators> enrolled;  // whose elements stay where they are

// The number of these operators for linear_relu: y of x, weight, bias; gradients of x, weight and bias from that of y,
// x, weight, y, and whether those of x and weight are needed; and the same by operations that are differentiable.
int64_t enroll(const std::string& forward, const std::string& gradients, const std::string& again) {
    auto& known = c10::Dispatcher::singleton();
    const std::lock_guard<std::mutex> alone(enrolling);
    enrolled.push_back(
        {known.findSchemaOrThrow(forward.c_str(), ""), known.findSchemaOrThrow(gradients.c_str(), ""),
         known.findSchemaOrThrow(again.c_str(), "")});
    return static_cast<int64_t>(enrolled.size()) - 1;
}

const Operators& operators(int64_t number) {
    const std::lock_guard<std::mutex> alone(enrolling);
    return enrolled.at(number);
}

struct BothPasses : torch::autograd::Function<BothPasses> {
    static at::Tensor forward(
        AutogradContext* context, int64_t number, const at::Tensor& x, const at::Tensor& weight,
        const std::optional<at::Tensor>& bias) {
        Stack stack{x, weight, bias};
        {
            const at::AutoDispatchBelowADInplaceOrView below;
            operators(number).forward.callBoxed(&stack);
        }
        const at::Tensor y = std::move(stack[0]).toTensor();
        context->save_for_backward({x, weight, y});
        context->saved_data["number"] = number;
        context->saved_data["tensors"] = bias.has_value() ? 3 : 2;
        context->set_materialize_grads(false);
        return y;
    }

    static variable_list backward(AutogradContext* context, const variable_list& grads) {
        variable_list found(4);  // first of the number
        if (!grads[0].defined()) return found;
        const variable_list saved = context->get_saved_variables();
        const Operators& own = operators(context->saved_data["number"].toInt());
        Stack stack{grads[0], saved[0], saved[1], saved[2], context->needs_input_grad(0), context->needs_input_grad(1)};
        const auto transforms = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;
        const bool dual = grads[0]._fw_grad(/*level=*/0).defined();
        if (at::GradMode::is_enabled() || c10::impl::tls_is_dispatch_key_included(transforms) || dual) {
            own.again.callBoxed(&stack);
        } else {
            const at::AutoDispatchBelowADInplaceOrView below;
            own.gradients.callBoxed(&stack);
        }
        for (int64_t n = 0; n < context->saved_data["tensors"].toInt(); ++n) {
            if (context->needs_input_grad(n)) found[1 + n] = std::move(stack[n]).toTensor();
        }
        return found;
    }
};

at::Tensor linear_relu(
    int64_t number, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    return BothPasses::apply(number, x, weight, bias);
}

}  // namespace

TORCH_LIBRARY(hypatia_both_passes, own) {
    own.def("enroll(str forward, str gradients, str again) -> int", &enroll);
    own.def("linear_relu(int number, Tensor x, Tensor weight, Tensor? bias) -> Tensor", &linear_relu);
}
