// Shared by all CUDA operators on the host: launches on PyTorch's current stream, and the device's limits.
//
// Nothing here synchronises with the device: the host never reads device memory (lengths, groups).
#pragma once

#include "../common.h"
#include "device.h"

#ifdef __CUDACC__
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#define ATTENTION_EXT_DEVICE CUDA
#else
#define ATTENTION_EXT_DEVICE CPU
#endif

namespace attention_ext {
namespace {

// Makes a tensor's device current during its lifetime and launches kernels on that device's current stream.
class Launcher {
 public:
#ifdef __CUDACC__
  explicit Launcher(const Tensor& x) : guard_(x.get_device_index()) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }
#else
  explicit Launcher(const Tensor&) {}
#endif

  // Launch a kernel on a grid of blocks, unless the grid is empty.
  template <class... Parameters, class... Arguments>
  void operator()(
      const char* name, void (*kernel)(Parameters...), int64_t x, int64_t y, int64_t z, Arguments... arguments) const {
    if (x <= 0 || y <= 0 || z <= 0) return;
    require(x < (1ll << 31) && y <= 65535 && z <= 65535, std::string(name) + " needs too many blocks for one launch");
    const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
#ifdef __CUDACC__
    kernel<<<grid, threads, 0, stream_>>>(static_cast<Parameters>(arguments)...);
    const cudaError_t error = cudaGetLastError();
    require(error == cudaSuccess, std::string(name) + " could not be launched: " + cudaGetErrorString(error));
#else
    emulation::run(grid, threads, [&] { kernel(static_cast<Parameters>(arguments)...); });
#endif
  }

 private:
#ifdef __CUDACC__
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
#endif
};

inline void require_type(const Tensor& x, const char* name) {
  const ScalarType type = x.scalar_type();
  require(
      type == ScalarType::Float || type == ScalarType::Half || type == ScalarType::BFloat16,
      std::string(name) + " must be float32, float16 or bfloat16 on CUDA");
}

// Lengths as int64 on the device; kernels clamp them.
inline Tensor lengths_on_device(const Tensor& lengths) { return contiguous_as(lengths, ScalarType::Long); }

inline void require_heads(const Tensor& x) {
  require(x.size(0) * x.size(1) <= 65535, "at most 65,535 sequences (batch × heads) on CUDA, found " + shape_of(x));
}

// Call f with a null pointer to the tensor's element type.
template <class F>
auto with_type(const Tensor& x, F f) {
  switch (x.scalar_type()) {
    case ScalarType::Half:
      return f(static_cast<Half*>(nullptr));
    case ScalarType::BFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}

// Rows of a tensor [B, H, N, D], as kernels take them.
template <class T>
struct Rows {
  const T* data;
  int64_t stride_b, stride_h, stride_n;
  explicit Rows(const Tensor& x)
      : data(static_cast<const T*>(x.const_data_ptr())),
        stride_b(x.stride(0)),
        stride_h(x.stride(1)),
        stride_n(x.stride(2)) {}
  __device__ const T* head(int64_t head, int64_t H) const { return data + head / H * stride_b + head % H * stride_h; }
};

}  // namespace
}  // namespace attention_ext
