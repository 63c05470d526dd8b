// Queries whose windows hold nearly all that their cluster gives to its far keys: taking it out would cancel.
//
// If two windows each hold more than half of a cluster's far weight, they overlap. All windows of a cluster's rescued
// queries therefore lie within a span of 4·W + 1 keys. The sums over the keys outside the span are the queries' in
// common; in the span, each query adds its own keys. Such queries are rare, so that plain loops will do.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/rows.h"

namespace attention_ext {
namespace {

template <class T>
T exp_one(T x) {
  return exp_vec(splat<T>(x))[0];
}

template <class T>
T dot_one(int64_t size, const T* a, const T* b) {
  constexpr int64_t W = Simd<T>::width;
  Vec<T> total = {};
  int64_t j = 0;
  for (; j + W <= size; j += W) total += load(a + j) * load(b + j);
  T rest = 0;
  for (; j < size; ++j) rest += a[j] * b[j];
  return sum_lanes<T>(total) + rest;
}

// to += factor · from
template <class T>
void add_one(int64_t size, T factor, const T* from, T* to) {
  constexpr int64_t W = Simd<T>::width;
  int64_t j = 0;
  for (; j + W <= size; j += W) store(to + j, load(to + j) + factor * load(from + j));
  for (; j < size; ++j) to[j] += factor * from[j];
}

// The keys from `first` to `end` that are no top keys: call key(l).
template <class T, class F>
void for_far(const RescueTask<T>& task, int64_t first, int64_t end, const F& key) {
  int64_t next = 0;
  while (next < task.K && task.top[next] < first) ++next;
  for (int64_t l = first; l < end; ++l)
    if (next < task.K && task.top[next] == l)
      ++next;
    else
      key(l);
}

// The span of the queries' windows.
struct Span {
  int64_t first, end;
};

template <class T>
Span span_of(const RescueTask<T>& task) {
  const int64_t first = task.queries[0] - task.window, end = task.queries[task.count - 1] + task.window + 1;
  return {first > 0 ? first : 0, end < task.length ? end : task.length};
}

template <class T>
void for_outside(const RescueTask<T>& task, const auto& key) {
  const Span span = span_of<T>(task);
  for_far<T>(task, 0, span.first, key);
  for_far<T>(task, span.end, task.length, key);
}

template <class T>
T keep_one(const RescueTask<T>& task, uint32_t row, int64_t key) {
  const double probability = task.dropout.probability;
  if (probability == 0) return 1;
  return keep_factor(row, key_code(key), drop_threshold(probability), static_cast<T>(1 / (1 - probability)));
}

// Scores of the centroid on all far keys; returns the highest outside the span, or `lowest_score`.
template <class T>
T rescue_scores(const RescueTask<T>& task, T* scores_N) {
  for_far<T>(task, 0, task.length, [&](int64_t l) {
    scores_N[l] = dot_one<T>(task.D, task.centroid_D, task.k + l * task.stride_k);
  });
  T highest = lowest_score<T>();
  for_outside<T>(task, [&](int64_t l) { highest = highest < scores_N[l] ? scores_N[l] : highest; });
  return highest;
}

template <class T>
void rescue_cluster(const RescueTask<T>& task) {
  const int64_t D = task.D, E = task.E;
  T *scores_N = task.scratch, *values = scores_N + task.length, *out = values + E;
  const Span span = span_of<T>(task);
  const T outside = rescue_scores<T>(task, scores_N);
  T sum = 0;
  for (int64_t e = 0; e < E; ++e) values[e] = 0;
  for_outside<T>(task, [&](int64_t l) {
    const T weight = exp_one<T>(scores_N[l] - outside);
    sum += weight;
    add_one<T>(E, weight * keep_one<T>(task, task.row_code, l), task.v + l * task.stride_v, values);
  });
  for (int64_t n = 0; n < task.count; ++n) {
    const int64_t i = task.queries[n];
    const T* q = task.q + i * task.stride_q;
    const uint32_t row = row_code(task.dropout.seed, task.first_row + i);
    const auto score = [&](int64_t l) {
      const bool own = l >= i - task.window && l <= i + task.window;
      return own ? dot_one<T>(D, q, task.k + l * task.stride_k) * task.scale : scores_N[l];
    };
    T highest = task.maximum_N[i] < outside ? outside : task.maximum_N[i];
    for_far<T>(task, span.first, span.end, [&](int64_t l) {
      const T x = score(l);
      highest = highest < x ? x : highest;
    });
    const T top = exp_one<T>(task.maximum_N[i] - highest), far = exp_one<T>(outside - highest);
    T total = task.sum_N[i] * top + sum * far;
    T* row_out = task.out_NE + i * E;
    for (int64_t e = 0; e < E; ++e) out[e] = row_out[e] * top + values[e] * far;
    for_far<T>(task, span.first, span.end, [&](int64_t l) {
      const T weight = exp_one<T>(score(l) - highest);
      const bool own = l >= i - task.window && l <= i + task.window;
      total += weight;
      add_one<T>(E, weight * keep_one<T>(task, own ? row : task.row_code, l), task.v + l * task.stride_v, out);
    });
    for (int64_t e = 0; e < E; ++e) row_out[e] = out[e] / total;
    task.maximum_N[i] = highest;
    task.sum_N[i] = 1 / total;
  }
}

template <class T>
void rescue_backward_cluster(const RescueTask<T>& task) {
  const int64_t D = task.D, E = task.E;
  T *scores_N = task.scratch, *grads = scores_N + task.length, *grad_q = grads + E;
  const Span span = span_of<T>(task);
  const T outside = rescue_scores<T>(task, scores_N);
  T delta = 0;
  for (int64_t e = 0; e < E; ++e) grads[e] = 0;
  // The gradient of key l's score, given its weight: for the query's own score, or for the centroid's.
  const auto add_key = [&](int64_t l, T slope, T weight, const T* query, T scale, const T* grad, T* grad_query) {
    add_one<T>(D, slope * task.scale, task.k + l * task.stride_k, grad_query);
    add_one<T>(D, slope * scale, query, task.grad_k_ND + l * D);
    add_one<T>(E, weight, grad, task.grad_v_NE + l * E);
  };
  for (int64_t n = 0; n < task.count; ++n) {
    const int64_t i = task.queries[n];
    const T *q = task.q + i * task.stride_q, *grad = task.grad + i * task.stride_grad;
    const uint32_t row = row_code(task.dropout.seed, task.first_row + i);
    for (int64_t d = 0; d < D; ++d) grad_q[d] = 0;
    for_far<T>(task, span.first, span.end, [&](int64_t l) {
      const bool own = l >= i - task.window && l <= i + task.window;
      const T score = own ? dot_one<T>(D, q, task.k + l * task.stride_k) * task.scale : scores_N[l];
      const T weight = exp_one<T>(score - task.maximum_N[i]) * task.inverse_sum_N[i];
      const T keep = keep_one<T>(task, own ? row : task.row_code, l);
      const T slope = weight * (keep * dot_one<T>(E, grad, task.v + l * task.stride_v) - task.delta_N[i]);
      if (own)
        add_key(l, slope, weight * keep, q, task.scale, grad, grad_q);
      else
        add_key(l, slope, weight * keep, task.centroid_D, 1, grad, task.grad_centroid_D);
    });
    add_one<T>(D, 1, grad_q, task.grad_q_ND + i * D);
    const T share = exp_one<T>(outside - task.maximum_N[i]) * task.inverse_sum_N[i];
    add_one<T>(E, share, grad, grads);
    delta += share * task.delta_N[i];
  }
  for_outside<T>(task, [&](int64_t l) {
    const T weight = exp_one<T>(scores_N[l] - outside), keep = keep_one<T>(task, task.row_code, l);
    const T slope = weight * (keep * dot_one<T>(E, grads, task.v + l * task.stride_v) - delta);
    add_key(l, slope, weight * keep, task.centroid_D, 1, grads, task.grad_centroid_D);
  });
}

}  // namespace
}  // namespace attention_ext
