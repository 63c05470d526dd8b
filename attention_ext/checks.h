// Checks of the operators' inputs, the same on every device. They read sizes, types and devices, never memory.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace attention_ext {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Raise an error without the C++ file name and line number, which mean nothing to the caller.
[[noreturn]] inline void fail(const std::string& reason) { throw std::runtime_error("attention_ext: " + reason); }

inline void require(bool holds, const std::string& otherwise) {
  if (!holds) fail(otherwise);
}

inline std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

inline std::string shape_of(const Tensor& x) {
  std::vector<int64_t> shape(x.dim());
  for (int64_t i = 0; i < x.dim(); ++i) shape[i] = x.size(i);
  return text_of(shape);
}

inline void require_dimensions(const Tensor& x, int64_t count, const char* wanted, const char* name) {
  if (x.dim() != count) fail(std::string(name) + " must be " + wanted + ", found " + shape_of(x));
}

inline void require_shape(const Tensor& x, const std::vector<int64_t>& shape, const char* name) {
  bool same = x.dim() == static_cast<int64_t>(shape.size());
  for (size_t i = 0; same && i < shape.size(); ++i) same = x.size(i) == shape[i];
  if (!same) fail(std::string(name) + " must be " + text_of(shape) + ", found " + shape_of(x));
}

inline void require_range(int64_t value, int64_t least, int64_t most, const char* name) {
  if (value < least || value > most)
    fail(
        std::string(name) + " must lie in " + std::to_string(least) + " … " + std::to_string(most) + ", found " +
        std::to_string(value));
}

inline bool floating(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}

inline void require_floating(const Tensor& x, const char* name) {
  if (!floating(x.scalar_type())) fail(std::string(name) + " must be float16, bfloat16, float32 or float64");
}

// Type of sums: float64 for float64, else float32.
inline ScalarType sum_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// A tensor on the device of `like`, with memory, and small enough that no product of sizes and limits overflows. Empty
// dimensions count as 1, so that the other ones may be multiplied too.
inline void require_usable(const Tensor& x, const Tensor& like, const char* name) {
  int32_t device, other;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &device));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &other));
  if (device != other || x.get_device_index() != like.get_device_index())
    fail(std::string(name) + " must lie on the same device as the first tensor");
  int64_t elements = 1;
  for (int64_t i = 0; i < x.dim(); ++i)
    if (__builtin_mul_overflow(elements, std::max<int64_t>(x.size(i), 1), &elements) || elements > int64_t{1} << 40)
      fail(std::string(name) + " must have at most 2^40 elements, found " + shape_of(x));
  if (x.numel() > 0 && x.const_data_ptr() == nullptr) fail(std::string(name) + " has no memory");
}

// An input of int32 indices; their values are checked where they are read.
inline void check_indices(const Tensor& x, const std::vector<int64_t>& shape, const Tensor& like, const char* name) {
  require_shape(x, shape, name);
  if (x.scalar_type() != ScalarType::Int) fail(std::string(name) + " must be int32");
  require_usable(x, like, name);
}

inline void check_lengths(const Tensor& lengths, int64_t B, const Tensor& like, const char* name) {
  require_shape(lengths, {B}, name);
  const ScalarType type = lengths.scalar_type();
  if (type != ScalarType::Long && type != ScalarType::Int) fail(std::string(name) + " must be int64 or int32");
  require_usable(lengths, like, name);
}

// A result of forward, handed to backward.
inline void check_saved(
    const Tensor& x, const std::vector<int64_t>& shape, ScalarType type, const Tensor& like, const char* name) {
  require_shape(x, shape, name);
  if (x.scalar_type() != type || !x.is_contiguous()) fail(std::string(name) + " must be what forward returned");
  require_usable(x, like, name);
}

// Queries, keys and values.
inline void check_vectors(const Tensor& q, const Tensor& k, const Tensor& v) {
  require_dimensions(q, 4, "[B, H, N, D]", "q");
  require_dimensions(k, 4, "[B, H, S, D]", "k");
  require_dimensions(v, 4, "[B, H, S, E]", "v");
  require_shape(k, {q.size(0), q.size(1), k.size(2), q.size(3)}, "k");
  require_shape(v, {q.size(0), q.size(1), k.size(2), v.size(3)}, "v");
  if (q.size(3) < 1 || v.size(3) < 1) fail("the head size must be at least 1");
  if (q.size(2) >= 1ll << 31 || k.size(2) >= 1ll << 31) fail("at most 2^31 − 1 positions");
  require_floating(q, "q");
  if (q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type()) fail("q, k and v must share a type");
  require_usable(q, q, "q");
  require_usable(k, q, "k");
  require_usable(v, q, "v");
}

// The gradient of the output [B, H, N, E].
inline void check_grad(const Tensor& grad, const Tensor& q, const Tensor& v) {
  require_shape(grad, {q.size(0), q.size(1), q.size(2), v.size(3)}, "grad");
  require_floating(grad, "grad");
  require_usable(grad, q, "grad");
}

// `seed` is [1] int64, required if the probability is above 0.
inline void check_dropout(double probability, const std::optional<Tensor>& seed, const Tensor& like) {
  if (!(probability >= 0 && probability < 1)) fail("dropout must lie in 0 … 1, excluding 1");
  if (probability == 0) return;
  if (!seed.has_value()) fail("dropout needs a seed: a tensor with one int64");
  require_shape(*seed, {1}, "the seed");
  if (seed->scalar_type() != ScalarType::Long) fail("the seed must be int64");
  require_usable(*seed, like, "the seed");
}

inline void check_clustered(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& query_lengths,
    const Tensor& key_lengths, int64_t clusters, double dropout, const std::optional<Tensor>& seed) {
  check_vectors(q, k, v);
  check_indices(groups, {q.size(0), q.size(1), q.size(2)}, q, "groups");
  check_lengths(query_lengths, q.size(0), q, "query_lengths");
  check_lengths(key_lengths, q.size(0), q, "key_lengths");
  require_range(clusters, 1, 1024, "clusters");
  check_dropout(dropout, seed, q);
}

// What the forward pass of clustered attention saved. `type` is that of its sums.
inline void check_clustered_saved(
    const Tensor& q, const Tensor& v, int64_t clusters, ScalarType type, const Tensor& softmax, const Tensor& values) {
  const int64_t B = q.size(0), H = q.size(1), C = std::min(clusters, q.size(2));
  check_saved(softmax, {B, H, 2, C}, type, q, "softmax");
  check_saved(values, {B, H, C, v.size(3)}, type, q, "values");
}

// The same for the additional results of improved clustered attention.
inline void check_improved_saved(
    const Tensor& q, const Tensor& k, const Tensor& v, int64_t clusters, ScalarType type, const Tensor& mass,
    const Tensor& top, const Tensor& out) {
  const int64_t B = q.size(0), H = q.size(1), C = std::min(clusters, q.size(2));
  check_saved(mass, {B, H, C}, type, q, "mass");
  require_dimensions(top, 4, "[B, H, C, K]", "top");
  require_range(top.size(3), 0, k.size(2), "the number of top keys");
  check_saved(top, {B, H, C, top.size(3)}, ScalarType::Int, q, "top");
  check_saved(out, {B, H, q.size(2), v.size(3)}, q.scalar_type(), q, "out");
}

inline void check_near(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& groups, const Tensor& lengths, int64_t clusters,
    int64_t window, double dropout, const std::optional<Tensor>& seed) {
  check_vectors(q, k, v);
  require_shape(k, {q.size(0), q.size(1), q.size(2), q.size(3)}, "k");
  check_indices(groups, {q.size(0), q.size(1), q.size(2)}, q, "groups");
  check_lengths(lengths, q.size(0), q, "lengths");
  require_range(clusters, 1, 1024, "clusters");
  if (window < 0) fail("window must be at least 0, found " + std::to_string(window));
  check_dropout(dropout, seed, q);
}

// What the forward pass of near attention saved. `type` is that of its sums.
inline void check_near_saved(
    const Tensor& q, const Tensor& v, int64_t clusters, ScalarType type, const Tensor& out, const Tensor& softmax,
    const Tensor& far, const Tensor& top) {
  const int64_t B = q.size(0), H = q.size(1), N = q.size(2), C = std::min(clusters, N);
  check_saved(out, {B, H, N, v.size(3)}, q.scalar_type(), q, "out");
  check_saved(softmax, {B, H, 2, N}, type, q, "softmax");
  check_saved(far, {B, H, 2, C}, type, q, "far");
  require_dimensions(top, 4, "[B, H, C, K]", "top");
  require_range(top.size(3), std::min<int64_t>(N, 1), N, "the number of top keys");
  check_saved(top, {B, H, C, top.size(3)}, ScalarType::Int, q, "top");
}

inline void check_hash(const Tensor& x, const Tensor& planes) {
  require_dimensions(x, 4, "[B, H, N, D]", "x");
  require_dimensions(planes, 2, "[P, D]", "planes");
  require_shape(planes, {planes.size(0), x.size(3)}, "planes");
  if (x.size(3) < 1) fail("the head size must be at least 1");
  require_range(planes.size(0), 1, 63, "the number of planes");
  require_floating(x, "x");
  require_floating(planes, "planes");
  require_usable(x, x, "x");
  require_usable(planes, x, "planes");
}

inline void check_mean(const Tensor& x, const Tensor& lengths) {
  require_dimensions(x, 4, "[B, H, N, D]", "x");
  require_floating(x, "x");
  if (x.size(2) >= 1ll << 31) fail("at most 2^31 − 1 positions");
  require_usable(x, x, "x");
  check_lengths(lengths, x.size(0), x, "lengths");
}

inline void check_kmeans(
    const Tensor& hashes, const Tensor& lengths, int64_t clusters, int64_t iterations, int64_t bits) {
  require_dimensions(hashes, 3, "[B, H, N]", "hashes");
  if (hashes.scalar_type() != ScalarType::Long) fail("hashes must be int64");
  if (hashes.size(2) >= 1ll << 31) fail("at most 2^31 − 1 positions");
  require_usable(hashes, hashes, "hashes");
  check_lengths(lengths, hashes.size(0), hashes, "lengths");
  require_range(clusters, 1, 1024, "clusters");
  require_range(iterations, 1, 1'000'000, "iterations");
  require_range(bits, 1, 63, "bits");
}

inline void check_key_groups(
    const Tensor& q, const Tensor& k, const Tensor& query_lengths, const Tensor& key_lengths, int64_t clusters,
    int64_t rank, int64_t iterations) {
  require_dimensions(q, 4, "[B, H, N, D]", "q");
  require_dimensions(k, 4, "[B, H, S, D]", "k");
  require_shape(k, {q.size(0), q.size(1), k.size(2), q.size(3)}, "k");
  require_range(q.size(3), 1, 256, "the head size");
  if (q.size(2) >= 1ll << 31 || k.size(2) >= 1ll << 31) fail("at most 2^31 − 1 positions");
  require_floating(q, "q");
  if (q.scalar_type() != k.scalar_type()) fail("q and k must share a type");
  require_usable(q, q, "q");
  require_usable(k, q, "k");
  check_lengths(query_lengths, q.size(0), q, "query_lengths");
  check_lengths(key_lengths, q.size(0), q, "key_lengths");
  require_range(clusters, 1, 1024, "clusters");
  require_range(rank, 1, 256, "rank");
  require_range(iterations, 1, 1'000'000, "iterations");
}

inline void check_buckets(const Tensor& x, const Tensor& rotations, const Tensor& lengths) {
  require_dimensions(x, 4, "[B, H, N, D]", "x");
  require_dimensions(rotations, 3, "[R, D, F]", "rotations");
  require_shape(rotations, {rotations.size(0), x.size(3), rotations.size(2)}, "rotations");
  if (x.size(3) < 1) fail("the head size must be at least 1");
  if (rotations.size(0) < 1) fail("rotations must be [R, D, F] with R ≥ 1, found " + shape_of(rotations));
  require_range(rotations.size(2), 1, 32768, "the number of rotations");
  if (x.size(2) >= 1ll << 31) fail("at most 2^31 − 1 positions");
  require_floating(x, "x");
  require_floating(rotations, "rotations");
  require_usable(x, x, "x");
  require_usable(rotations, x, "rotations");
  check_lengths(lengths, x.size(0), x, "lengths");
}

// `rounds` are the buckets, or the order of positions in each round, [B, H, R, N].
inline void check_lsh(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rounds, const Tensor& lengths, int64_t chunk,
    double dropout, const std::optional<Tensor>& seed, const char* name) {
  check_vectors(q, k, v);
  require_shape(k, {q.size(0), q.size(1), q.size(2), q.size(3)}, "k");
  require_dimensions(rounds, 4, "[B, H, R, N]", name);
  if (rounds.size(2) < 1) fail(std::string(name) + " must be [B, H, R, N] with R ≥ 1, found " + shape_of(rounds));
  check_indices(rounds, {q.size(0), q.size(1), rounds.size(2), q.size(2)}, q, name);
  check_lengths(lengths, q.size(0), q, "lengths");
  if (chunk < 1) fail("chunk must be at least 1, found " + std::to_string(chunk));
  check_dropout(dropout, seed, q);
}

inline void check_local(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t left, int64_t right,
    int64_t chunk, int64_t globals, double dropout, const std::optional<Tensor>& seed,
    const std::optional<Tensor>& bias) {
  check_vectors(q, k, v);
  require_shape(k, {q.size(0), q.size(1), q.size(2), q.size(3)}, "k");
  check_lengths(lengths, q.size(0), q, "lengths");
  if (left < 0) fail("left must be at least 0, found " + std::to_string(left));
  if (right < 0) fail("right must be at least 0, found " + std::to_string(right));
  if (chunk < 1) fail("chunk must be at least 1, found " + std::to_string(chunk));
  if (globals < 0) fail("globals must be at least 0, found " + std::to_string(globals));
  if (bias) {
    require_shape(*bias, {q.size(0), q.size(2)}, "bias");
    require_floating(*bias, "bias");
    require_usable(*bias, q, "bias");
  }
  check_dropout(dropout, seed, q);
}

}  // namespace attention_ext
