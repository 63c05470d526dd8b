// Inputs of the CPU attention operators: dropout, working memory.
#pragma once

#include <algorithm>

#include "../common.h"
#include "kernels.h"

namespace attention_ext {
namespace {

// Uninitialised memory, indexed from `first`: a slice of a larger array.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count, int64_t first = 0) : memory_(new T[std::max<int64_t>(count, 1)]), first_(first) {}
  T* operator+(int64_t i) const { return memory_.get() + (i - first_); }

 private:
  std::unique_ptr<T[]> memory_;
  int64_t first_;
};

// Dropout of one call.
inline Dropout dropout_of(double probability, const std::optional<Tensor>& seed) {
  if (probability == 0) return {0, 0};
  return {probability, static_cast<uint64_t>(*static_cast<const int64_t*>(seed->const_data_ptr()))};
}

// Whether tiles of bfloat16 serve these inputs.
inline bool on_tiles(const Tensor& q, const Tensor& v) {
  return instruction_set().tiles && q.scalar_type() == ScalarType::BFloat16 && q.numel() > 0 && q.size(3) <= 256 &&
         v.size(3) <= 256;
}

}  // namespace
}  // namespace attention_ext
