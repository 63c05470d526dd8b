// Shared by all operators: typed access to tensors through the stable ABI, parallel loops.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "checks.h"

namespace attention_ext {

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
  if (aoti_torch_empty_strided(
          static_cast<int64_t>(shape.size()), shape.data(), strides.data(), number, device, like.get_device_index(),
          &handle))
    fail("no memory for a tensor of shape " + text_of(shape));
  return Tensor(handle);
}

template <class T>
T* data_of(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

// Checked lengths as host integers.
inline std::vector<int64_t> lengths_of(const Tensor& lengths, int64_t size, const char* name) {
  const Tensor integers = contiguous_as(lengths, ScalarType::Long);
  const int64_t* values = static_cast<const int64_t*>(integers.const_data_ptr());
  std::vector<int64_t> result(values, values + lengths.size(0));
  for (int64_t length : result) require_range(length, 0, size, name);
  return result;
}

// Run independent tasks first … end − 1; idle threads take the next few. share() returns the function that a thread
// calls with each task's number. Nested inside a task, this is a plain loop. The first exception of a task is raised
// once all threads have ended; PyTorch would replace its message.
template <class Share>
void parallel_shares(int64_t first, int64_t end, const Share& share) {
  const int64_t tasks = end - first, threads = std::min<int64_t>(torch::stable::get_num_threads(), tasks);
  const int64_t few = std::max<int64_t>(1, tasks / (8 * std::max<int64_t>(threads, 1)));
  std::atomic<int64_t> next{first};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    int64_t begin = next.fetch_add(few, std::memory_order_relaxed);
    if (begin >= end) return;
    try {
      const auto task = share();
      for (; begin < end; begin = next.fetch_add(few, std::memory_order_relaxed))
        for (int64_t i = begin; i < std::min(begin + few, end); ++i) task(i);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
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
