// Inputs of the CPU attention operators: checks, dropout, working memory.
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

inline void check_vectors(const Tensor& q, const Tensor& k, const Tensor& v) {
  require(q.dim() == 4, "q must be [B, H, N, D], found " + shape_of(q));
  require(k.dim() == 4, "k must be [B, H, S, D], found " + shape_of(k));
  const int64_t B = q.size(0), H = q.size(1);
  require_shape(k, {B, H, k.size(2), q.size(3)}, "k");
  require(v.dim() == 4, "v must be [B, H, S, E], found " + shape_of(v));
  require_shape(v, {B, H, k.size(2), v.size(3)}, "v");
  require(q.size(3) >= 1 && v.size(3) >= 1, "the head size must be at least 1");
  require(q.size(2) < (1ll << 31) && k.size(2) < (1ll << 31), "at most 2^31 − 1 positions");
  require(floating(q.scalar_type()), "q must have a floating type");
  require(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(), "q, k and v must share a type");
}

// Dropout of one call; `seed` is one int64, required if the probability is above 0.
inline Dropout dropout_of(double probability, const std::optional<Tensor>& seed) {
  require(probability >= 0 && probability < 1, "dropout must lie in 0 … 1, excluding 1");
  if (probability == 0) return {0, 0};
  require(seed.has_value() && seed->numel() == 1, "dropout needs a seed: a tensor with one int64");
  require(seed->scalar_type() == ScalarType::Long, "the seed must be int64");
  return {probability, static_cast<uint64_t>(*static_cast<const int64_t*>(seed->const_data_ptr()))};
}

}  // namespace
}  // namespace attention_ext
