// Calls without Python: operators whose arguments were seen before replay what Python did then.
//
// A plan is what one operator does for arguments of given shapes, strides, dtypes, alignment and numbers: memory that it
// asks for, kernels that it launches, operators of PyTorch's that it calls. kernels/recording.py records plans and writes
// them down; this file keeps them by those arguments, and carries them out. Schema, what fake tensors give and what a
// CPU computes stay in Python (operators.py); here are the kernel of the device, the formula of the gradients and what
// autocast does. It needs PyTorch alone to build: CUDA's driver is looked up at run time.

#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using c10::IValue;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

// ---------------------------------------------------------------- what is said

// Without streams: where the compiler links its standard library into this one, theirs and PyTorch's do not mix.
inline const std::string& text(const std::string& words) { return words; }
inline std::string text(const char* words) { return words ? words : ""; }
inline std::string text(int64_t number) { return std::to_string(number); }
template <class Number>
std::string text(at::ArrayRef<Number> numbers) {
    std::string found = "[";
    for (const Number& number : numbers) found += (found.size() > 1 ? ", " : "") + text(static_cast<int64_t>(number));
    return found + "]";
}

template <class... Words>
std::string said(const Words&... words) {
    return (std::string() + ... + text(words));
}

// ---------------------------------------------------------------- the driver

// Of cuda.h, which need not be there: names and layouts are part of the driver's binary interface.
struct Attribute {
    uint64_t id;
    uint32_t value[16];
};
struct Configuration {
    uint32_t grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    uint32_t number;
};
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};
constexpr uint64_t COOPERATIVE = 2, CLUSTER_DIMENSION = 4, SCHEDULING_POLICY = 5, PROGRAMMATIC_SERIALIZATION = 6;
constexpr uint32_t SPREAD = 1;
constexpr int MOST_DYNAMIC_SHARED_BYTES = 8;
constexpr uint32_t UNASKED = 32 * 1024;  // bytes of it that need no leave, whatever the kernel declares of its own

struct Driver {
    int (*cuGetErrorName)(int, const char**);
    int (*cuDriverGetVersion)(int*);
    int (*cuCtxGetCurrent)(void**);
    int (*cuCtxSetCurrent)(void*);
    int (*cuDeviceGet)(int*, int);
    int (*cuDevicePrimaryCtxRetain)(void**, int);
    int (*cuLibraryLoadData)(void**, const void*, void*, void*, unsigned, void*, void*, unsigned);
    int (*cuLibraryGetKernel)(void**, void*, const char*);
    int (*cuKernelGetFunction)(void**, void*);
    int (*cuKernelSetAttribute)(int, int, void*, int);
    int (*cuLaunchKernelEx)(const Configuration*, void*, void**, void**);
    int (*cuTensorMapEncodeTiled)(
        TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, int,
        int, int);
    int version = 0;

    explicit Driver(const std::string& path) {
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        TORCH_CHECK(library, said("no CUDA driver: ", dlerror()));
        const auto find = [library](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            TORCH_CHECK(function, said("the CUDA driver is too old: it has no ", name));
        };
        find(cuGetErrorName, "cuGetErrorName");
        find(cuDriverGetVersion, "cuDriverGetVersion");
        find(cuCtxGetCurrent, "cuCtxGetCurrent");
        find(cuCtxSetCurrent, "cuCtxSetCurrent");
        find(cuDeviceGet, "cuDeviceGet");
        find(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
        find(cuLibraryLoadData, "cuLibraryLoadData");
        find(cuLibraryGetKernel, "cuLibraryGetKernel");
        find(cuKernelGetFunction, "cuKernelGetFunction");
        find(cuKernelSetAttribute, "cuKernelSetAttribute");
        find(cuLaunchKernelEx, "cuLaunchKernelEx");
        find(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled");
        ensure(cuDriverGetVersion(&version), "asking the driver's version");
    }

    template <class... Words>
    void ensure(int status, const Words&... what) const {
        if (C10_LIKELY(status == 0)) return;
        const char* name = nullptr;
        cuGetErrorName(status, &name);
        TORCH_CHECK(false, said(what..., " failed: ", name ? name : "unknown error", " (", int64_t{status}, ")"));
    }
};

std::unique_ptr<Driver> opened;

const Driver& driver() {
    TORCH_CHECK(opened, "the CUDA driver is not open");
    return *opened;
}

// ---------------------------------------------------------------- kernels

struct Kernel {
    std::string name;
    void* handle = nullptr;
    uint32_t shared = 0;
    std::vector<Attribute> attributes;
};

std::mutex loading;

// The kernel `name` of the machine code in `path`, loaded once a process whichever plans use it.
void* loaded(const std::string& path, const std::string& name) {
    static std::unordered_map<std::string, void*> handles;
    void*& handle = handles[path + '\0' + name];
    if (!handle) {
        std::vector<char> code;
        if (std::FILE* file = std::fopen(path.c_str(), "rb")) {
            std::array<char, 1 << 16> part;
            while (const size_t size = std::fread(part.data(), 1, part.size(), file)) {
                code.insert(code.end(), part.begin(), part.begin() + size);
            }
            std::fclose(file);
        }
        TORCH_CHECK(!code.empty(), said("cannot read ", path));
        void* library = nullptr;
        const int status = driver().cuLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
        driver().ensure(status, "loading ", path);
        driver().ensure(driver().cuLibraryGetKernel(&handle, library, name.c_str()), "finding ", name);
    }
    return handle;
}

// A thread that has called nothing of CUDA's yet has no context, even where memory is at hand for it.
void ensure_context(const at::Device& device) {
    void* context = nullptr;
    driver().ensure(driver().cuCtxGetCurrent(&context), "asking for the context");
    if (context) return;
    int number = 0;
    driver().ensure(driver().cuDeviceGet(&number, std::max<int>(device.index(), 0)), "finding the device");
    driver().ensure(driver().cuDevicePrimaryCtxRetain(&context, number), "making a context");
    driver().ensure(driver().cuCtxSetCurrent(context), "setting the context");
}

// Ready to be launched on the device, also while a graph is captured, when nothing can be loaded any more.
void make_ready(const Kernel& kernel, const at::Device& device) {
    if (kernel.shared > UNASKED) {
        static std::unordered_map<void*, std::array<uint32_t, 64>> allowed;
        uint32_t& most = allowed[kernel.handle].at(std::max<int>(device.index(), 0));
        if (most < kernel.shared) {
            int number = 0;
            driver().ensure(driver().cuDeviceGet(&number, std::max<int>(device.index(), 0)), "finding the device");
            const int status = driver().cuKernelSetAttribute(
                MOST_DYNAMIC_SHARED_BYTES, static_cast<int>(kernel.shared), kernel.handle, number);
            driver().ensure(status, kernel.name, " with ", int64_t{kernel.shared}, " bytes of shared memory a block");
            most = kernel.shared;
        }
    }
    void* function = nullptr;
    driver().ensure(driver().cuKernelGetFunction(&function, kernel.handle), "loading ", kernel.name);
}

// ---------------------------------------------------------------- plans

// The numbers and words in which recording.py writes a plan down, read from the front.
struct Reader {
    at::ArrayRef<int64_t> numbers;
    const std::vector<std::string>& words;
    size_t at = 0;

    int64_t next() {
        TORCH_CHECK(at < numbers.size(), "a plan ends too early");
        return numbers[at++];
    }
    const std::string& word() { return words.at(next()); }
    std::vector<int64_t> list() {
        std::vector<int64_t> found(next());
        for (int64_t& number : found) number = next();
        return found;
    }
    template <class Part>
    std::vector<Part> all() {
        std::vector<Part> found;
        for (int64_t left = next(); left > 0; --left) found.emplace_back(*this);
        return found;
    }
};

// A tensor of the plan's, as it is or in other sizes and strides, so many elements into it.
struct View {
    int64_t slot, offset;
    bool whole;
    std::vector<int64_t> sizes, strides;

    explicit View(Reader& from)
        : slot(from.next()), offset(from.next()), whole(from.next()), sizes(from.list()), strides(from.list()) {}

    at::Tensor of(const std::vector<at::Tensor>& slots) const {
        const at::Tensor& tensor = slots[slot];
        return whole ? tensor : tensor.as_strided(sizes, strides, tensor.storage_offset() + offset);
    }
};

// What a kernel is given: an address, a number, or a tensor map of an address.
struct Parameter {
    enum Kind : int64_t { POINTER, NUMBER, MAP };
    Kind kind;
    int64_t slot = -1, offset = 0;
    uint64_t number = 0;
    int dtype = 0, swizzle = 0, promotion = 0, fill = 0;
    std::vector<int64_t> sizes, strides, box;
    // By address; an allocator hands out few. Whoever takes a map copies it, for another thread may clear them.
    mutable std::unordered_map<uint64_t, TensorMap> maps;

    explicit Parameter(Reader& from) : kind(static_cast<Kind>(from.next())) {
        if (kind == NUMBER) {
            number = static_cast<uint64_t>(from.next());
            return;
        }
        slot = from.next();
        offset = from.next();
        if (kind == POINTER) return;
        dtype = static_cast<int>(from.next());
        swizzle = static_cast<int>(from.next());
        promotion = static_cast<int>(from.next());
        fill = static_cast<int>(from.next());
        sizes = from.list();
        strides = from.list();
        box = from.list();
    }

    void encode(uint64_t address, TensorMap& map) const {
        const std::vector<uint64_t> extents(sizes.begin(), sizes.end()), pitches(strides.begin(), strides.end());
        const std::vector<uint32_t> boxes(box.begin(), box.end()), ones(box.size(), 1);
        const int status = driver().cuTensorMapEncodeTiled(
            &map, dtype, static_cast<uint32_t>(sizes.size()), reinterpret_cast<void*>(address), extents.data(),
            pitches.data() + 1, boxes.data(), ones.data(), 0, swizzle, promotion, fill);
        driver().ensure(status, "a tensor map of ", at::IntArrayRef(sizes), " in boxes of ", at::IntArrayRef(box));
        // Drivers up to 13.1 set a flag that is wrong for small tensors. Source: CUTLASS, Triton 3.7.
        int64_t bytes = 1;
        for (size_t n = 0; n < sizes.size(); ++n) bytes += (sizes[n] - 1) * strides[n];
        if (driver().version <= 13010 && bytes < 128 * 1024) map.opaque[1] &= ~(1ull << 21);
    }
};

// An argument of an operator of PyTorch's.
struct Argument {
    enum Kind : int64_t { NONE, INTEGER, FLOAT, BOOL, TENSOR, INTEGERS, TENSORS, DEVICE, WORD, BOOLS, NUMBER };
    Kind kind;
    IValue value;
    std::vector<View> views;

    explicit Argument(Reader& from) : kind(static_cast<Kind>(from.next())) {
        switch (kind) {
            case NONE:
            case DEVICE:
                return;
            case INTEGER:
                value = from.next();
                return;
            case FLOAT:
                value = std::bit_cast<double>(from.next());
                return;
            case BOOL:
                value = static_cast<bool>(from.next());
                return;
            case WORD:
                value = from.word();
                return;
            case INTEGERS:
                value = from.list();
                return;
            case BOOLS: {
                c10::List<bool> flags;
                for (const int64_t flag : from.list()) flags.push_back(flag != 0);
                value = flags;
                return;
            }
            case TENSOR:
                views.emplace_back(from);
                return;
            case NUMBER: {  // where a tensor is expected
                const Argument number(from);
                at::Tensor wrapped = c10::scalar_to_tensor(number.value.toScalar());
                wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
                value = wrapped;
                return;
            }
            case TENSORS:
                views = from.all<View>();
                return;
        }
        TORCH_CHECK(false, "a plan has an argument of an unknown kind");
    }

    IValue of(const std::vector<at::Tensor>& slots, const at::Device& device) const {
        if (kind == TENSOR) return views[0].of(slots);
        if (kind == DEVICE) return device;
        if (kind != TENSORS) return value;
        c10::List<at::Tensor> tensors;
        for (const View& view : views) tensors.push_back(view.of(slots));
        return tensors;
    }
};

struct Step {
    enum Kind : int64_t { ALLOCATE, LAUNCH, CALL, BESIDE, BACK, JOIN };
    Kind kind;
    // ALLOCATE: a new tensor.
    at::ScalarType dtype = at::kByte;
    std::vector<int64_t> sizes, strides;
    // LAUNCH: a kernel.
    Kernel kernel;
    std::array<uint32_t, 3> grid{}, block{};
    std::vector<Parameter> parameters;
    // CALL: an operator, whose first results, so many, are new tensors.
    std::optional<c10::OperatorHandle> callee;
    std::vector<Argument> arguments;
    int64_t results = 0;

    explicit Step(Reader& from) : kind(static_cast<Kind>(from.next())) {
        if (kind == ALLOCATE) {
            dtype = static_cast<at::ScalarType>(from.next());
            sizes = from.list();
            strides = from.list();
        } else if (kind == LAUNCH) {
            const std::string& path = from.word();
            kernel.name = from.word();
            kernel.shared = static_cast<uint32_t>(from.next());
            const auto cluster = static_cast<uint32_t>(from.next());
            const bool spread = from.next(), dependent = from.next(), cooperative = from.next();
            if (cluster > 1) kernel.attributes.push_back({CLUSTER_DIMENSION, {cluster, 1, 1}});
            if (spread) kernel.attributes.push_back({SCHEDULING_POLICY, {SPREAD}});
            if (dependent) kernel.attributes.push_back({PROGRAMMATIC_SERIALIZATION, {1}});
            if (cooperative) kernel.attributes.push_back({COOPERATIVE, {1}});
            for (uint32_t& extent : grid) extent = static_cast<uint32_t>(from.next());
            for (uint32_t& extent : block) extent = static_cast<uint32_t>(from.next());
            parameters = from.all<Parameter>();
            kernel.handle = loaded(path, kernel.name);
        } else if (kind == CALL) {
            const std::string& name = from.word();
            const std::string& overload = from.word();
            callee = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
            arguments = from.all<Argument>();
            results = from.next();
        }
    }
};

// The current stream, and the one that runs beside it, of a device that has streams.
class Streams {
  public:
    explicit Streams(const at::Device& device) : device_(device), impl_(device.type()) {
        here_ = impl_.getStream(device);
    }
    // However a step ends, the caller's stream is current again.
    ~Streams() { back(); }

    void* handle() const {
        if (device_.is_cpu()) return nullptr;  // of tests
        return impl_.getStreamNativeHandle(beside_ ? *other_ : *here_);
    }
    void beside() {
        if (!other_) {
            thread_local std::unordered_map<int, c10::Stream> others;
            auto found = others.find(device_.index());
            if (found == others.end()) found = others.emplace(device_.index(), impl_.getNewStream(device_)).first;
            other_ = found->second;
        }
        follow(*here_, *other_);
        impl_.exchangeStream(*other_);
        beside_ = true;
    }
    void back() {
        if (beside_) impl_.exchangeStream(*here_);
        beside_ = false;
    }
    void join() { follow(*other_, *here_); }

  private:
    void follow(const c10::Stream& first, const c10::Stream& second) {
        c10::Event event(device_.type());
        event.record(first);
        event.block(second);
    }
    at::Device device_;
    c10::impl::VirtualGuardImpl impl_;
    std::optional<c10::Stream> here_, other_;
    bool beside_ = false;
};

struct Plan {
    int64_t arena;  // bytes of one allocation for all that only kernels see
    std::vector<Step> steps;
    std::vector<View> outputs;
    mutable std::mutex maps;
    mutable std::array<std::atomic<bool>, 64> ready{};

    explicit Plan(Reader from) : arena(from.next()), steps(from.all<Step>()), outputs(from.all<View>()) {}

    void make_ready_on(const at::Device& device) const {
        std::atomic<bool>& done = ready.at(std::max<int>(device.index(), 0));
        if (C10_LIKELY(done.load(std::memory_order_acquire))) return;
        const std::lock_guard<std::mutex> alone(loading);
        for (const Step& step : steps) {
            if (step.kind == Step::LAUNCH) make_ready(step.kernel, device);
        }
        done.store(true, std::memory_order_release);
    }

    void launch(const Step& step, const std::vector<at::Tensor>& slots, const Streams& streams) const {
        constexpr size_t MOST = 64, MOST_MAPS = 16;
        std::array<uint64_t, MOST> values;
        std::array<void*, MOST> addresses;
        std::array<TensorMap, MOST_MAPS> copies;
        TORCH_CHECK(step.parameters.size() <= MOST, said(step.kernel.name, " has too many parameters"));
        size_t mapped = 0;
        for (size_t n = 0; n < step.parameters.size(); ++n) {
            const Parameter& parameter = step.parameters[n];
            values[n] = parameter.number;
            addresses[n] = &values[n];
            if (parameter.kind == Parameter::NUMBER) continue;
            values[n] = reinterpret_cast<uint64_t>(slots[parameter.slot].const_data_ptr()) + parameter.offset;
            if (parameter.kind == Parameter::POINTER) continue;
            TORCH_CHECK(mapped < MOST_MAPS, said(step.kernel.name, " has too many tensor maps"));
            const std::lock_guard<std::mutex> alone(maps);
            auto found = parameter.maps.find(values[n]);
            if (found == parameter.maps.end()) {
                if (parameter.maps.size() >= 256) parameter.maps.clear();
                TensorMap made{};
                parameter.encode(values[n], made);
                found = parameter.maps.emplace(values[n], made).first;
            }
            copies[mapped] = found->second;
            addresses[n] = &copies[mapped++];
        }
        Configuration configuration{};
        std::copy(step.grid.begin(), step.grid.end(), configuration.grid);
        std::copy(step.block.begin(), step.block.end(), configuration.block);
        configuration.shared = step.kernel.shared;
        configuration.stream = streams.handle();
        configuration.attributes = const_cast<Attribute*>(step.kernel.attributes.data());
        configuration.number = static_cast<uint32_t>(step.kernel.attributes.size());
        const int status = driver().cuLaunchKernelEx(&configuration, step.kernel.handle, addresses.data(), nullptr);
        const at::ArrayRef<uint32_t> grid(step.grid), block(step.block);
        driver().ensure(status, "launching ", step.kernel.name, " with grid ", grid, " and block ", block);
    }

    // `slots` are the operator's tensors; new ones follow them.
    std::vector<at::Tensor> run(std::vector<at::Tensor> slots, const at::Device& device) const {
        const c10::DeviceGuard guard(device);
        if (opened) {
            ensure_context(device);
            make_ready_on(device);
        }
        Streams streams(device);
        const at::TensorOptions options = at::TensorOptions().device(device);
        if (arena) slots.push_back(at::empty({arena}, options.dtype(at::kByte)));
        for (const Step& step : steps) {
            switch (step.kind) {
                case Step::ALLOCATE:
                    slots.push_back(at::empty_strided(step.sizes, step.strides, options.dtype(step.dtype)));
                    break;
                case Step::LAUNCH:
                    launch(step, slots, streams);
                    break;
                case Step::CALL: {
                    Stack stack;
                    for (const Argument& argument : step.arguments) stack.push_back(argument.of(slots, device));
                    step.callee->callBoxed(&stack);
                    for (int64_t n = 0; n < step.results; ++n) slots.push_back(std::move(stack[n]).toTensor());
                    break;
                }
                case Step::BESIDE:
                    streams.beside();
                    break;
                case Step::BACK:
                    streams.back();
                    break;
                case Step::JOIN:
                    streams.join();
                    break;
            }
        }
        std::vector<at::Tensor> found;
        for (const View& view : outputs) found.push_back(view.of(slots));
        return found;
    }
};

// ---------------------------------------------------------------- the kernel of a device

void append(std::string& key, int64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); }

// All of a tensor that a plan depends on. Kernels ask for at most 16 bytes of alignment.
void append(std::string& key, const at::Tensor& tensor) {
    if (!tensor.defined()) return append(key, -1);
    const void* address = tensor.const_data_ptr();
    TORCH_CHECK(
        address || tensor.numel() == 0, said("a tensor of ", tensor.sizes(), " has no memory: it was freed"));
    append(key, tensor.dim());
    append(key, static_cast<int64_t>(tensor.scalar_type()) << 16 | static_cast<int64_t>(tensor.device().type()) << 8 |
                    static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) % 16));
    append(key, tensor.device().index());
    for (const int64_t size : tensor.sizes()) append(key, size);
    for (const int64_t stride : tensor.strides()) append(key, stride);
}

// Whether `values` can be told apart by a key; it and their tensors are appended to.
bool describe(at::ArrayRef<IValue> values, std::string& key, std::vector<at::Tensor>& tensors) {
    for (const IValue& value : values) {
        if (value.isTensor()) {
            tensors.push_back(value.toTensor());
            append(key, tensors.back());
        } else if (value.isNone()) {
            key.append("none");
        } else if (value.isTensorList()) {
            const c10::List<at::Tensor> list = value.toTensorList();
            append(key, static_cast<int64_t>(list.size()));
            for (size_t n = 0; n < list.size(); ++n) {
                tensors.push_back(list.get(n));
                append(key, tensors.back());
            }
        } else if (value.isInt()) {
            append(key, value.toInt());
        } else if (value.isBool()) {
            append(key, value.toBool());
        } else if (value.isDouble()) {
            append(key, std::bit_cast<int64_t>(value.toDouble()));
        } else if (value.isString()) {
            const std::string& text = value.toStringRef();
            append(key, static_cast<int64_t>(text.size()));
            key.append(text);
        } else {
            return false;
        }
    }
    return true;
}

class Replayed;

// The call without a plan that this thread is in.
struct Wanted {
    std::string name, key;
    Replayed* owner;
};
thread_local const Wanted* wanted = nullptr;

constexpr size_t MOST_PLANS = 1024;

class Replayed : public c10::OperatorKernel {
  public:
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
        // What is called from here on is neither differentiated nor cast: that was done on the way here.
        const at::AutoDispatchBelowADInplaceOrView below;
        const c10::impl::ExcludeDispatchKeyGuard uncast(c10::autocast_dispatch_keyset);
        const size_t count = op.schema().arguments().size();
        std::vector<at::Tensor> tensors;
        std::string key;
        key.reserve(512);
        const bool known = describe(torch::jit::last(*stack, count), key, tensors);
        std::shared_ptr<const Plan> plan = known ? find(key) : nullptr;
        if (C10_UNLIKELY(!plan)) {
            // Python makes the plan and calls again, or computes the result itself where there can be none.
            const Wanted own{op.schema().name(), std::move(key), this};
            const Wanted* outer = std::exchange(wanted, known ? &own : nullptr);
            const auto restored = c10::make_scope_exit([outer] { wanted = outer; });
            op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
            return;
        }
        std::vector<at::Tensor> found = plan->run(std::move(tensors), device_of(torch::jit::last(*stack, count)));
        torch::jit::drop(*stack, count);
        for (at::Tensor& tensor : found) stack->emplace_back(std::move(tensor));
    }

    void keep(const std::string& key, std::shared_ptr<const Plan> plan) {
        const std::lock_guard<std::shared_mutex> alone(mutex_);
        if (plans_.size() >= MOST_PLANS) plans_.clear();
        plans_[key] = std::move(plan);
    }

  private:
    static at::Device device_of(at::ArrayRef<IValue> values) {
        for (const IValue& value : values) {
            if (value.isTensor() && value.toTensor().defined()) return value.toTensor().device();
            if (value.isTensorList() && !value.toTensorList().empty()) return value.toTensorList().get(0).device();
        }
        TORCH_CHECK(false, "an operator without tensors has no device");
    }
    std::shared_ptr<const Plan> find(const std::string& key) {
        const std::shared_lock<std::shared_mutex> together(mutex_);
        const auto found = plans_.find(key);
        return found == plans_.end() ? nullptr : found->second;
    }
    std::shared_mutex mutex_;
    std::unordered_map<std::string, std::shared_ptr<const Plan>> plans_;
};

// ---------------------------------------------------------------- gradients

// How the gradients of an operator's first tensors follow from that of its first result.
struct Formula {
    enum Kind : int64_t { GRADIENT, ARGUMENT, RESULT, NEEDED };
    std::optional<c10::OperatorHandle> gradient;
    std::string refusal;  // where there is none
    std::vector<int64_t> given;  // of each argument of `gradient` its kind, and which

    // Whether argument `n` of `gradient` is a tensor, or may be.
    bool is_tensor(size_t n) const {
        return gradient->schema().arguments()[n].type()->isSubtypeOf(*c10::OptionalType::ofTensor());
    }
};

// One call: what of it is not a tensor.
struct Called {
    const Formula* formula;  // lives as long as the operator
    const c10::OperatorHandle* op;
    Stack* stack;
};

struct Differentiated : torch::autograd::Function<Differentiated> {
    static variable_list forward(AutogradContext* context, Called called, at::TensorList tensors) {
        const std::vector<IValue> arguments = *called.stack;
        {
            const at::AutoDispatchBelowADInplaceOrView below;
            called.op->callBoxed(called.stack);
        }
        variable_list results;
        for (IValue& value : *called.stack) results.push_back(std::move(value).toTensor());
        std::vector<int64_t> lists;  // by argument that may hold tensors: so many of a list, or -1 for one that is there
        for (const IValue& value : arguments) {
            if (value.isTensorList()) lists.push_back(static_cast<int64_t>(value.toTensorList().size()));
            if (value.isTensor() || value.isNone()) lists.push_back(value.isTensor() ? -1 : 0);
        }
        variable_list saved;
        c10::List<IValue> others(c10::AnyType::get());  // what is no tensor, and how many a list has
        const std::vector<int64_t>& given = called.formula->given;
        for (size_t n = 0; n < given.size(); n += 2) {
            if (given[n] == Formula::RESULT) saved.push_back(results[given[n + 1]]);
            if (given[n] != Formula::ARGUMENT) continue;
            const IValue& value = arguments[given[n + 1]];
            if (called.formula->is_tensor(n / 2)) {
                saved.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
            } else if (value.isTensorList()) {
                for (const at::Tensor& tensor : value.toTensorVector()) saved.push_back(tensor);
                others.push_back(static_cast<int64_t>(value.toTensorList().size()));
            } else {
                others.push_back(value);
            }
        }
        context->save_for_backward(saved);
        context->saved_data["others"] = others;
        context->saved_data["lists"] = lists;
        context->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
        context->saved_data["formula"] = reinterpret_cast<int64_t>(called.formula);
        context->set_materialize_grads(false);
        context->mark_non_differentiable(variable_list(results.begin() + 1, results.end()));
        return results;
    }

    static variable_list backward(AutogradContext* context, const variable_list& grads) {
        const auto& formula = *reinterpret_cast<const Formula*>(context->saved_data["formula"].toInt());
        TORCH_CHECK_NOT_IMPLEMENTED(formula.gradient, formula.refusal);
        variable_list found(1 + context->saved_data["tensors"].toInt());  // first of what is no tensor
        if (!grads[0].defined()) return found;
        const auto& arguments = formula.gradient->schema().arguments();
        const variable_list saved = context->get_saved_variables();
        const c10::List<IValue> others = context->saved_data["others"].toList();
        size_t tensor = 0, other = 0;
        Stack stack;
        for (size_t n = 0; n < formula.given.size(); n += 2) {
            const int64_t kind = formula.given[n], which = formula.given[n + 1];
            const c10::TypePtr& type = arguments[n / 2].type();
            if (kind == Formula::GRADIENT) {
                stack.emplace_back(grads[0]);
            } else if (kind == Formula::NEEDED) {
                stack.emplace_back(context->needs_input_grad(which));
            } else if (kind == Formula::RESULT || formula.is_tensor(n / 2)) {
                const at::Tensor& kept = saved[tensor++];
                stack.emplace_back(kept.defined() ? IValue(kept) : IValue());
            } else if (type->isSubtypeOf(*c10::ListType::ofTensors())) {
                c10::List<at::Tensor> list;
                for (int64_t left = others.get(other++).toInt(); left > 0; --left) list.push_back(saved[tensor++]);
                stack.emplace_back(std::move(list));
            } else {
                stack.emplace_back(others.get(other++));
            }
        }
        formula.gradient->callBoxed(&stack);
        const std::vector<int64_t> lists = context->saved_data["lists"].toIntVector();
        tensor = 0;
        for (size_t n = 0; n < stack.size(); ++n) {
            const at::Tensor gradient = std::move(stack[n]).toTensor();
            for (int64_t part = 0; part < std::abs(lists[n]); ++part, ++tensor) {
                if (!context->needs_input_grad(tensor)) continue;
                found[1 + tensor] = lists[n] < 0 ? gradient : gradient.select(0, part);
            }
        }
        return found;
    }
};

class Differentiable : public c10::OperatorKernel {
  public:
    explicit Differentiable(Formula formula) : formula_(std::move(formula)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
        const size_t count = op.schema().arguments().size();
        variable_list tensors;
        for (const IValue& value : torch::jit::last(*stack, count)) {
            if (value.isTensor()) tensors.push_back(value.toTensor());
            if (value.isTensorList()) {
                for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
            }
        }
        if (!at::GradMode::is_enabled() || !torch::autograd::any_variable_requires_grad(tensors)) {
            const at::AutoDispatchBelowADInplaceOrView below;
            op.callBoxed(stack);
            return;
        }
        Stack own(std::make_move_iterator(stack->end() - count), std::make_move_iterator(stack->end()));
        torch::jit::drop(*stack, count);
        for (at::Tensor& result : Differentiated::apply(Called{&formula_, &op, &own}, at::TensorList(tensors))) {
            stack->emplace_back(std::move(result));
        }
    }

  private:
    Formula formula_;
};

// ---------------------------------------------------------------- autocast

void cast(const c10::OperatorHandle& op, Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard uncast(c10::autocast_dispatch_keyset);
    const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCUDA);
    for (size_t n = stack->size() - op.schema().arguments().size(); n < stack->size(); ++n) {
        IValue& value = (*stack)[n];
        if (value.isTensor()) {
            value = at::autocast::cached_cast(dtype, value.toTensor(), at::kCUDA);
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& tensor : value.toTensorVector()) {
                list.push_back(at::autocast::cached_cast(dtype, tensor, at::kCUDA));
            }
            value = list;
        }
    }
    op.callBoxed(stack);
}

// ---------------------------------------------------------------- what Python calls

torch::Library& library(c10::DispatchKey key) {
    static std::vector<std::unique_ptr<torch::Library>> libraries;  // what they register lives as long
    libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "hypatia", key, __FILE__, __LINE__));
    return *libraries.back();
}

void open_driver(const std::string& path) { opened = std::make_unique<Driver>(path); }

// Tensors of `device` ("CUDA", in tests "CPU") go through plans from now on.
void replay(const std::string& name, const std::string& device) {
    library(c10::parseDispatchKey(device))
        .impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Replayed>()));
}

// And are differentiated by the operator `gradient`, or not, as `refusal` says.
void differentiate(
    const std::string& name, const std::string& device, const std::string& gradient, const std::string& refusal,
    std::vector<int64_t> given) {
    Formula formula{std::nullopt, refusal, std::move(given)};
    if (!gradient.empty()) formula.gradient = c10::Dispatcher::singleton().findSchemaOrThrow(gradient.c_str(), "");
    library(c10::parseDispatchKey("Autograd" + device))
        .impl(
            name.c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Differentiable>(std::move(formula))));
}

void autocast(const std::string& name) {
    library(c10::DispatchKey::AutocastCUDA).impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast>());
}

// Whether this thread is in a call of `name` that has no plan, but could have.
bool awaits(const std::string& name) { return wanted && wanted->name == name; }

// The plan of the call of `name` that this thread is in.
void keep_plan(const std::string& name, std::vector<int64_t> numbers, std::vector<std::string> words) {
    TORCH_CHECK(awaits(name), said("no call of ", name, " waits for a plan"));
    const std::lock_guard<std::mutex> alone(loading);
    wanted->owner->keep(wanted->key, std::make_shared<const Plan>(Reader{numbers, words}));
}

}  // namespace

TORCH_LIBRARY(hypatia_plans, own) {
    own.def("open_driver(str path) -> ()", &open_driver);
    own.def("replay(str name, str device) -> ()", &replay);
    own.def("differentiate(str name, str device, str gradient, str refusal, int[] given) -> ()", &differentiate);
    own.def("autocast(str name) -> ()", &autocast);
    own.def("awaits(str name) -> bool", &awaits);
    own.def("keep_plan(str name, int[] numbers, str[] words) -> ()", &keep_plan);
}
