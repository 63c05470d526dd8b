// Shared by all operators: checks, typed access to tensors through the stable ABI, parallel loops.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace attention_ext {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Raise an error without the C++ file name and line number, which mean nothing to the caller.
inline void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error("attention_ext: " + otherwise);
}

inline std::string shape_of(const Tensor& x) {
  std::string text = "[";
  for (int64_t i = 0; i < x.dim(); ++i) text += (i ? ", " : "") + std::to_string(x.size(i));
  return text + "]";
}

inline void require_shape(const Tensor& x, const std::vector<int64_t>& shape, const char* name) {
  bool same = x.dim() == static_cast<int64_t>(shape.size());
  for (size_t i = 0; same && i < shape.size(); ++i) same = x.size(i) == shape[i];
  if (same) return;
  std::string wanted = "[";
  for (size_t i = 0; i < shape.size(); ++i) wanted += (i ? ", " : "") + std::to_string(shape[i]);
  require(false, std::string(name) + " must be " + wanted + "], found " + shape_of(x));
}

inline bool floating(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}

// Type of sums: float64 for float64, else float32.
inline ScalarType sum_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline Tensor as_type(const Tensor& x, ScalarType type) {
  return x.scalar_type() == type ? x : torch::stable::to(x, type);
}

// x contiguous and in this type; x itself if it already is, without a call through PyTorch's dispatcher.
inline Tensor contiguous_as(const Tensor& x, ScalarType type) {
  const Tensor same = as_type(x, type);
  return same.is_contiguous() ? same : torch::stable::contiguous(same);
}

// x, [B, H, N, D], with contiguous rows; copied only if its last stride is not 1.
inline Tensor with_contiguous_rows(const Tensor& x) {
  return x.size(3) <= 1 || x.stride(3) == 1 ? x : torch::stable::contiguous(x);
}

template <class T>
struct View {
  const T* data;
  int64_t stride_b, stride_h, stride_n;
  explicit View(const Tensor& x)
      : data(static_cast<const T*>(x.const_data_ptr())),
        stride_b(x.stride(0)),
        stride_h(x.stride(1)),
        stride_n(x.stride(2)) {}
  const T* head(int64_t b, int64_t h) const { return data + b * stride_b + h * stride_h; }
};

// An uninitialised tensor on like's device. Allocated directly: PyTorch's dispatcher would take several times as long.
inline Tensor new_tensor(const Tensor& like, const std::vector<int64_t>& shape, ScalarType type) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  const auto number = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
  int32_t device;
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(shape.size()), shape.data(), strides.data(), number, device, like.get_device_index(),
      &handle));
  return Tensor(handle);
}

template <class T>
T* data_of(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

// Checked lengths as host integers.
inline std::vector<int64_t> lengths_of(const Tensor& lengths, int64_t B, int64_t size, const char* name) {
  require_shape(lengths, {B}, name);
  const Tensor integers = contiguous_as(lengths, ScalarType::Long);
  const int64_t* values = static_cast<const int64_t*>(integers.const_data_ptr());
  std::vector<int64_t> result(values, values + B);
  for (int64_t length : result)
    require(
        length >= 0 && length <= size,
        std::string(name) + " must lie in 0 … " + std::to_string(size) + ", found " + std::to_string(length));
  return result;
}

// Run independent tasks first … end − 1; idle threads take the next few. share() returns the function that a thread
// calls with each task's number. Nested inside a task, this is a plain loop.
template <class Share>
void parallel_shares(int64_t first, int64_t end, const Share& share) {
  const int64_t tasks = end - first, threads = std::min<int64_t>(torch::stable::get_num_threads(), tasks);
  const int64_t few = std::max<int64_t>(1, tasks / (8 * std::max<int64_t>(threads, 1)));
  std::atomic<int64_t> next{first};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    int64_t begin = next.fetch_add(few, std::memory_order_relaxed);
    if (begin >= end) return;
    const auto task = share();
    for (; begin < end; begin = next.fetch_add(few, std::memory_order_relaxed))
      for (int64_t i = begin; i < std::min(begin + few, end); ++i) task(i);
  });
}

template <class F>
void parallel(int64_t first, int64_t end, const F& task) {
  parallel_shares(first, end, [&] { return [&](int64_t i) { task(i); }; });
}

template <class F>
void parallel(int64_t tasks, const F& task) {
  parallel(0, tasks, task);
}

// The same with scratch memory per thread, aligned to 64 bytes.
template <class F>
void parallel_with_scratch(int64_t first, int64_t end, int64_t bytes, const F& task) {
  parallel_shares(first, end, [&] {
    std::unique_ptr<char[]> memory(new char[bytes + 64]);
    char* aligned = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
    return [&task, aligned, memory = std::move(memory)](int64_t i) { task(i, aligned); };
  });
}

template <class F>
void parallel_with_scratch(int64_t tasks, int64_t bytes, const F& task) {
  parallel_with_scratch(0, tasks, bytes, task);
}

}  // namespace attention_ext
