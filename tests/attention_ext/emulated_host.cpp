// Runs the CPU operators without libtorch, e.g. on an emulated processor: the functions of PyTorch's stable ABI that
// they call, for tensors in memory, and a program that calls an operator for every request on its standard input.
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

namespace {

using torch::headeronly::ScalarType;
using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

struct Host {
  std::shared_ptr<char[]> storage;
  int64_t offset;  // bytes
  std::vector<int64_t> sizes, strides;
  int32_t dtype;
  char* data() const { return storage.get() + offset; }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return n;
  }
};

Host& host(AtenTensorHandle handle) { return *reinterpret_cast<Host*>(handle); }
AtenTensorHandle handle_of(Host x) { return reinterpret_cast<AtenTensorHandle>(new Host(std::move(x))); }

std::map<std::string, Boxed>& operators() {
  static std::map<std::string, Boxed> all;
  return all;
}

int64_t bytes_of(int32_t dtype) {
  switch (static_cast<ScalarType>(dtype)) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool:
      return 1;
    case ScalarType::Short:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Int:
    case ScalarType::Float:
      return 4;
    default:
      return 8;
  }
}

// Elements between the first and one past the last.
int64_t extent(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

Host empty(std::vector<int64_t> sizes, std::vector<int64_t> strides, int32_t dtype) {
  const int64_t bytes = extent(sizes, strides) * bytes_of(dtype) + 64;
  std::shared_ptr<char[]> storage(new char[bytes]);
  memset(storage.get(), 0xa5, bytes);  // what is never written must not be read
  return {storage, 0, std::move(sizes), std::move(strides), dtype};
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  return strides;
}

template <class F>
void with_type(int32_t dtype, F f) {
  switch (static_cast<ScalarType>(dtype)) {
    case ScalarType::Byte:
      return f(uint8_t{});
    case ScalarType::Char:
      return f(int8_t{});
    case ScalarType::Bool:
      return f(bool{});
    case ScalarType::Short:
      return f(int16_t{});
    case ScalarType::Int:
      return f(int32_t{});
    case ScalarType::Long:
      return f(int64_t{});
    case ScalarType::Half:
      return f(torch::headeronly::Half{});
    case ScalarType::BFloat16:
      return f(torch::headeronly::BFloat16{});
    case ScalarType::Float:
      return f(float{});
    case ScalarType::Double:
      return f(double{});
    default:
      throw std::runtime_error("this host has no tensors of type " + std::to_string(dtype));
  }
}

Host converted(const Host& x, int32_t dtype) {
  Host y = empty(x.sizes, contiguous_strides(x.sizes), dtype);
  with_type(x.dtype, [&](auto from) {
    with_type(dtype, [&](auto to) {
      auto* target = reinterpret_cast<decltype(to)*>(y.data());
      const auto* source = reinterpret_cast<const decltype(from)*>(x.data());
      for (int64_t i = 0; i < x.numel(); ++i) {
        int64_t rest = i, place = 0;
        for (size_t d = x.sizes.size(); d-- > 0; rest /= x.sizes[d]) place += rest % x.sizes[d] * x.strides[d];
        target[i] = static_cast<decltype(to)>(source[place]);
      }
    });
  });
  return y;
}

void receive(void* to, size_t bytes) {
  for (char* at = static_cast<char*>(to); bytes;) {
    const ssize_t got = read(0, at, bytes);
    if (got <= 0) _exit(0);
    at += got, bytes -= got;
  }
}

void send(const void* from, size_t bytes) {
  for (const char* at = static_cast<const char*>(from); bytes;) {
    const ssize_t put = write(1, at, bytes);
    if (put <= 0) _exit(1);
    at += put, bytes -= put;
  }
}

template <class T>
T receive() {
  T x;
  receive(&x, sizeof(x));
  return x;
}

std::string receive_text() {
  std::string text(receive<int64_t>(), '\0');
  receive(text.data(), text.size());
  return text;
}

void send_text(const std::string& text) {
  const int64_t size = text.size();
  send(&size, sizeof(size)), send(text.data(), size);
}

Host receive_tensor() {
  const int64_t dtype = receive<int64_t>(), dims = receive<int64_t>();
  std::vector<int64_t> sizes(dims), strides(dims);
  receive(sizes.data(), 8 * dims), receive(strides.data(), 8 * dims);
  Host x = empty(sizes, strides, static_cast<int32_t>(dtype));
  receive(x.data(), extent(sizes, strides) * bytes_of(x.dtype));
  return x;
}

void send_tensor(const Host& x) {
  const Host y = converted(x, x.dtype);
  const int64_t head[] = {y.dtype, static_cast<int64_t>(y.sizes.size())};
  send(head, sizeof(head)), send(y.sizes.data(), 8 * y.sizes.size()), send(y.data(), y.numel() * bytes_of(y.dtype));
}

// Kinds of arguments: a tensor, an integer (also for a truth value), a number, nothing, and `?` before an optional one.
StableIValue receive_argument() {
  StableIValue value = 0;
  switch (receive<char>()) {
    case 'T':
      return reinterpret_cast<StableIValue>(handle_of(receive_tensor()));
    case '?':
      return reinterpret_cast<StableIValue>(new StableIValue(receive_argument()));
    case '-':
      return 0;
    default:
      receive(&value, 8);
      return value;
  }
}

}  // namespace

#define CONSTANT(name, value) \
  int32_t name() { return static_cast<int32_t>(value); }
#define ABSENT(name) CONSTANT(name, 99)

extern "C" {

uint64_t aoti_torch_abi_version() { return (2ull << 56) | (11ull << 48); }
CONSTANT(aoti_torch_device_type_cpu, 0)
ABSENT(aoti_torch_device_type_cuda)
ABSENT(aoti_torch_device_type_meta)
ABSENT(aoti_torch_device_type_mps)
ABSENT(aoti_torch_device_type_privateuse1)
ABSENT(aoti_torch_device_type_xpu)
CONSTANT(aoti_torch_dtype_uint8, ScalarType::Byte)
CONSTANT(aoti_torch_dtype_int8, ScalarType::Char)
CONSTANT(aoti_torch_dtype_int16, ScalarType::Short)
CONSTANT(aoti_torch_dtype_int32, ScalarType::Int)
CONSTANT(aoti_torch_dtype_int64, ScalarType::Long)
CONSTANT(aoti_torch_dtype_float16, ScalarType::Half)
CONSTANT(aoti_torch_dtype_float32, ScalarType::Float)
CONSTANT(aoti_torch_dtype_float64, ScalarType::Double)
CONSTANT(aoti_torch_dtype_bool, ScalarType::Bool)
CONSTANT(aoti_torch_dtype_bfloat16, ScalarType::BFloat16)
CONSTANT(aoti_torch_dtype_complex32, ScalarType::ComplexHalf)
CONSTANT(aoti_torch_dtype_complex64, ScalarType::ComplexFloat)
CONSTANT(aoti_torch_dtype_complex128, ScalarType::ComplexDouble)
CONSTANT(aoti_torch_dtype_float8_e5m2, ScalarType::Float8_e5m2)
CONSTANT(aoti_torch_dtype_float8_e4m3fn, ScalarType::Float8_e4m3fn)
CONSTANT(aoti_torch_dtype_float8_e5m2fnuz, ScalarType::Float8_e5m2fnuz)
CONSTANT(aoti_torch_dtype_float8_e4m3fnuz, ScalarType::Float8_e4m3fnuz)
CONSTANT(torch_dtype_float8_e8m0fnu, ScalarType::Float8_e8m0fnu)
CONSTANT(torch_dtype_float4_e2m1fn_x2, ScalarType::Float4_e2m1fn_x2)
CONSTANT(aoti_torch_dtype_uint16, ScalarType::UInt16)
CONSTANT(aoti_torch_dtype_uint32, ScalarType::UInt32)
CONSTANT(aoti_torch_dtype_uint64, ScalarType::UInt64)
CONSTANT(aoti_torch_layout_strided, 0)
ABSENT(aoti_torch_layout__mkldnn)
ABSENT(aoti_torch_layout_jagged)
ABSENT(aoti_torch_layout_sparse_bsc)
ABSENT(aoti_torch_layout_sparse_bsr)
ABSENT(aoti_torch_layout_sparse_coo)
ABSENT(aoti_torch_layout_sparse_csc)
ABSENT(aoti_torch_layout_sparse_csr)
CONSTANT(aoti_torch_memory_format_contiguous_format, 0)
ABSENT(aoti_torch_memory_format_channels_last)
ABSENT(aoti_torch_memory_format_channels_last_3d)
ABSENT(aoti_torch_memory_format_preserve_format)

AOTITorchError aoti_torch_library_init_def(const char*, const char*, uint32_t, TorchLibraryHandle*) { return 0; }
AOTITorchError aoti_torch_library_init_impl(const char*, const char*, const char*, uint32_t, TorchLibraryHandle*) {
  return 0;
}
AOTITorchError aoti_torch_library_def(TorchLibraryHandle, const char*) { return 0; }
AOTITorchError aoti_torch_delete_library_object(TorchLibraryHandle) { return 0; }
AOTITorchError torch_library_impl(TorchLibraryHandle, const char* name, Boxed call, uint64_t) {
  operators()[name] = call;
  return 0;
}

AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle x, AtenTensorHandle* to) {
  *to = handle_of(host(x));
  return 0;
}
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle x) {
  delete &host(x);
  return 0;
}
AOTITorchError aoti_torch_empty_strided(
    int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t, int32_t, AtenTensorHandle* to) {
  *to = handle_of(empty({sizes, sizes + dims}, {strides, strides + dims}, dtype));
  return 0;
}
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, int32_t* to) { return *to = 0; }
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle, int32_t* to) { return *to = 0; }
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle x, int32_t* to) {
  *to = host(x).dtype;
  return 0;
}
AOTITorchError aoti_torch_get_dim(AtenTensorHandle x, int64_t* to) {
  *to = host(x).sizes.size();
  return 0;
}
AOTITorchError aoti_torch_get_numel(AtenTensorHandle x, int64_t* to) {
  *to = host(x).numel();
  return 0;
}
AOTITorchError aoti_torch_get_size(AtenTensorHandle x, int64_t d, int64_t* to) {
  *to = host(x).sizes.at(d);
  return 0;
}
AOTITorchError aoti_torch_get_stride(AtenTensorHandle x, int64_t d, int64_t* to) {
  *to = host(x).strides.at(d);
  return 0;
}
AOTITorchError aoti_torch_is_contiguous(AtenTensorHandle x, bool* to) {
  int64_t step = 1;
  *to = true;
  for (size_t d = host(x).sizes.size(); d-- > 0; step *= host(x).sizes[d])
    if (host(x).sizes[d] > 1 && host(x).strides[d] != step) *to = false;
  if (!host(x).numel()) *to = true;
  return 0;
}
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle x, const void** to) {
  *to = host(x).data();
  return 0;
}
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle x, void** to) {
  *to = host(x).data();
  return 0;
}
AOTITorchError aoti_torch_aten_narrow(
    AtenTensorHandle x, int64_t d, int64_t start, int64_t length, AtenTensorHandle* to) {
  Host part = host(x);
  part.offset += start * part.strides.at(d) * bytes_of(part.dtype);
  part.sizes[d] = length;
  *to = handle_of(part);
  return 0;
}

AOTITorchError torch_call_dispatcher(const char* name, const char*, StableIValue* stack, uint64_t) {
  Host* x = reinterpret_cast<Host*>(stack[0]);
  const std::string operation = name;
  if (operation == "aten::zero_") {
    memset(x->data(), 0, extent(x->sizes, x->strides) * bytes_of(x->dtype));
    return 0;
  }
  if (operation == "aten::to") {
    auto* dtype = reinterpret_cast<StableIValue*>(stack[1]);
    *x = converted(*x, static_cast<int32_t>(*dtype));
    delete dtype;
    return 0;
  }
  if (operation == "aten::contiguous") {
    *x = converted(*x, x->dtype);
    return 0;
  }
  return 1;
}

AOTITorchError torch_get_num_threads(uint32_t* to) {
  *to = 1;
  return 0;
}
AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t, ParallelFunc call, void* context) {
  if (begin < end) call(begin, end, context);
  return 0;
}

// Only choose_instruction_set has texts, and it is not called.
AOTITorchError torch_new_string_handle(const char*, size_t, StringHandle*) { return 1; }
AOTITorchError torch_delete_string(StringHandle) { return 1; }
AOTITorchError torch_string_length(StringHandle, size_t*) { return 1; }
AOTITorchError torch_string_c_str(StringHandle, const char**) { return 1; }

}  // extern "C"

// A request: name of the operator, number of results, number of arguments, arguments. An answer: an error or an empty
// text, then the results.
int main() {
  for (;;) {
    const Boxed call = operators().at(receive_text());
    const int64_t results = receive<int64_t>(), arguments = receive<int64_t>();
    std::vector<StableIValue> stack(std::max(results, arguments));
    for (int64_t i = 0; i < arguments; ++i) stack[i] = receive_argument();
    try {
      call(stack.data(), arguments, results);
    } catch (const std::exception& error) {
      send_text(*error.what() ? error.what() : "unknown");
      continue;
    }
    send_text("");
    for (int64_t i = 0; i < results; ++i) {
      Host* x = reinterpret_cast<Host*>(stack[i]);
      send_tensor(*x);
      delete x;
    }
  }
}
