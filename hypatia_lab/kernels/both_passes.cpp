// Linear+ReLU with both its passes by operators of the lab's, or by PyTorch's epilogue, for autograd's engine alone: no
// Python in the backward pass, whose thread would have to wait for the interpreter.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

struct Operators {
    c10::OperatorHandle forward, gradients, again;
    bool frugal;
};
std::mutex enrolling;
std::deque<Operators> enrolled;  // whose elements stay where they are

// The number of these operators for linear_relu: y of x, weight, bias; gradients of x, weight and bias from that of y,
// x, weight, y, and whether those of x and weight are needed; and the same by operations that are differentiable.
// A frugal one also asks whether the bias's is needed, and reads x and weight only where the other's is.
int64_t enroll(const std::string& forward, const std::string& gradients, const std::string& again) {
    auto& known = c10::Dispatcher::singleton();
    const auto found = known.findSchemaOrThrow(gradients.c_str(), "");
    const bool frugal = found.schema().argumentIndexWithName("needs_bias").has_value();
    const std::lock_guard<std::mutex> alone(enrolling);
    enrolled.push_back(
        {known.findSchemaOrThrow(forward.c_str(), ""), found, known.findSchemaOrThrow(again.c_str(), ""), frugal});
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
        const Operators& own = operators(number);
        Stack stack{x, weight, bias};
        {
            const at::AutoDispatchBelowADInplaceOrView below;
            own.forward.callBoxed(&stack);
        }
        const at::Tensor y = std::move(stack[0]).toTensor();
        const bool x_read = !own.frugal || weight.requires_grad(), weight_read = !own.frugal || x.requires_grad();
        context->save_for_backward({x_read ? x : at::Tensor(), weight_read ? weight : at::Tensor(), y});
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
        const int64_t tensors = context->saved_data["tensors"].toInt();
        const auto transforms = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;
        const bool dual = grads[0]._fw_grad(/*level=*/0).defined();
        if (at::GradMode::is_enabled() || c10::impl::tls_is_dispatch_key_included(transforms) || dual) {
            own.again.callBoxed(&stack);
        } else {
            if (own.frugal) stack.emplace_back(tensors > 2 && context->needs_input_grad(2));
            const at::AutoDispatchBelowADInplaceOrView below;
            own.gradients.callBoxed(&stack);
        }
        for (int64_t n = 0; n < tensors; ++n) {
            if (context->needs_input_grad(n)) found[1 + n] = std::move(stack[n]).toTensor();
        }
        return found;
    }
};

at::Tensor linear_relu(
    int64_t number, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    return BothPasses::apply(number, x, weight, bias);
}

// ---------------------------------------------------------------- PyTorch's own

// `one` as a matrix; -1 would be undefined without features.
at::Tensor in_rows(const at::Tensor& one) {
    if (one.dim() == 2) return one;
    return one.reshape({c10::multiply_integers(one.sizes().slice(0, one.dim() - 1)), one.size(-1)});
}

// y by the library's epilogue; without a bias, for which there is none, by a product and a ReLU.
at::Tensor epilogue(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    const at::Tensor rows = in_rows(x), across = weight.t();
    const at::Tensor y = bias ? at::_addmm_activation(*bias, rows, across) : at::mm(rows, across).relu_();
    if (x.dim() == 2) return y;
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return y.view(sizes);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> epilogue_gradients(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& y, bool needs_x,
    bool needs_weight, bool needs_bias) {
    const at::Tensor masked = at::threshold_backward(grad, y, 0), rows = in_rows(masked);
    return {
        needs_x ? at::matmul(masked, weight) : at::Tensor(),
        needs_weight ? at::mm(rows.t(), in_rows(x)) : at::Tensor(), needs_bias ? rows.sum(0) : at::Tensor()};
}

// ---------------------------------------------------------------- layers that follow each other

using Parameters = c10::List<std::optional<at::Tensor>>;  // weight, bias, weight, bias, ...

// By all that the choice of forms depends on: for each layer the number of its operators, or -1 for PyTorch's own; none
// where Python is to go layer by layer.
std::unordered_map<std::string, std::vector<int64_t>> runs;  // whose elements stay where they are, and as they are
constexpr size_t MOST_RUNS = 4096;

void append(std::string& seen, int64_t number) { seen.append(reinterpret_cast<const char*>(&number), sizeof number); }

// Whether `one` is memory and nothing else, which is described.
bool append(std::string& seen, const at::Tensor& one) {
    if (one.is_nested() || one.layout() != at::kStrided) return false;
    if (one.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
    append(seen, static_cast<int64_t>(one.key_set().raw_repr()));
    append(seen, static_cast<int64_t>(one.scalar_type()) << 16 | static_cast<int64_t>(one.get_device() + 1) << 1 |
                     one.requires_grad());
    append(seen, one.dim());
    for (const int64_t size : one.sizes()) append(seen, size);
    for (const int64_t stride : one.strides()) append(seen, stride);
    return true;
}

// What is seen of a call; empty where there is more to it.
std::string described(const std::string& clock, const at::Tensor& x, const Parameters& parameters) {
    std::string seen = clock + ' ';
    const auto thread = c10::impl::tls_local_dispatch_key_set();
    append(seen, static_cast<int64_t>(thread.included_.raw_repr()));
    append(seen, static_cast<int64_t>(thread.excluded_.raw_repr()));
    append(seen, at::GradMode::is_enabled());
    try {
        append(seen, static_cast<int64_t>(at::globalContext().float32MatmulPrecision()));
    } catch (const c10::Error&) {  // the old and the new switches say different things
        return "";
    }
    if (!append(seen, x)) return "";
    for (const auto& parameter : parameters) {
        const std::optional<at::Tensor> one = parameter;
        if (one.has_value() ? !append(seen, *one) : (append(seen, -1), false)) return "";
    }
    return seen;
}

// From now on such layers are computed by operators of these numbers.
void keep(
    const std::string& clock, const at::Tensor& x, const Parameters& parameters, const std::vector<int64_t>& numbers) {
    const std::string seen = described(clock, x, parameters);
    const std::lock_guard<std::mutex> alone(enrolling);
    if (!seen.empty() && runs.size() < MOST_RUNS) runs.emplace(seen, numbers);
}

// x through Linear+ReLU after Linear+ReLU, or as it is where Python is to do that; nothing where their like has not been
// kept.
std::optional<at::Tensor> run(const std::string& clock, const at::Tensor& x, const Parameters& parameters) {
    const std::string seen = described(clock, x, parameters);
    const std::vector<int64_t>* numbers = nullptr;
    {
        const std::lock_guard<std::mutex> alone(enrolling);
        const auto found = runs.find(seen);
        if (found == runs.end()) return std::nullopt;
        numbers = &found->second;
    }
    at::Tensor y = x;
    size_t at = 0;
    for (const int64_t number : *numbers) {
        const std::optional<at::Tensor> weight = parameters[at], bias = parameters[at + 1];
        y = number < 0 ? at::relu(at::linear(y, *weight, bias)) : linear_relu(number, y, *weight, bias);
        at += 2;
    }
    return y;
}

}  // namespace

TORCH_LIBRARY(hypatia_both_passes, own) {
    own.def("enroll(str forward, str gradients, str again) -> int", &enroll);
    own.def("linear_relu(int number, Tensor x, Tensor weight, Tensor? bias) -> Tensor", &linear_relu);
    own.def("epilogue(Tensor x, Tensor weight, Tensor? bias) -> Tensor", &epilogue);
    own.def(
        "epilogue_gradients(Tensor grad, Tensor x, Tensor weight, Tensor y, bool needs_x, bool needs_weight, "
        "bool needs_bias) -> (Tensor, Tensor, Tensor)",
        &epilogue_gradients);
    own.def("keep(str clock, Tensor x, Tensor?[] parameters, int[] numbers) -> ()", &keep);
    own.def("run(str clock, Tensor x, Tensor?[] parameters) -> Tensor?", &run);
}
